import pytest
import torch
from torch import nn

from spatialgrad.utils.optimizers import (
    parameter_ids,
    unwrap_optimizer,
    unwrap_optimizers,
)


class Wrapper:
    """As the wrappers of trainers: it shows the parameter groups of what it wraps."""

    def __init__(self, optimizer, attribute="optimizer"):
        setattr(self, attribute, optimizer)
        self.param_groups = optimizer.param_groups


@pytest.fixture
def weight():
    return nn.Parameter(torch.zeros(1))


@pytest.fixture
def sgd(weight):
    return torch.optim.SGD([weight], lr=1.0)


@pytest.mark.parametrize("attribute", ["optimizer", "base_optimizer", "_base_optimizer", "opt", "original_optimizer"])
def test_wrapped_optimizers_are_looked_through(sgd, attribute):
    assert unwrap_optimizer(Wrapper(Wrapper(sgd), attribute)) is sgd


def test_wrappers_of_one_optimizer_count_once(sgd, weight):
    other = torch.optim.Adam([weight])
    assert unwrap_optimizers([Wrapper(sgd), other, sgd]) == [sgd, other]
    assert unwrap_optimizers(sgd) == [sgd]
    with pytest.raises(ValueError, match="list is empty"):
        unwrap_optimizers([])


def test_parameter_ids(sgd, weight):
    assert parameter_ids(sgd) == {id(weight)}
