import pytest
import torch
from torch import nn

from spatialgrad.utils.optimizers import parameter_ids, unwrap_optimizer, unwrap_optimizers


class Wrapper:
    """As the wrappers of trainers: it shows the parameter groups of what it wraps."""

    def __init__(self, optimizer, attribute="optimizer"):
        setattr(self, attribute, optimizer)
        self.param_groups = optimizer.param_groups


def test_wrappers_are_looked_through_and_those_of_one_optimizer_count_once():
    weight = nn.Parameter(torch.zeros(1))
    sgd, other = torch.optim.SGD([weight], lr=1.0), torch.optim.Adam([weight])
    for attribute in ("optimizer", "base_optimizer", "_base_optimizer", "opt", "original_optimizer"):
        assert unwrap_optimizer(Wrapper(Wrapper(sgd), attribute)) is sgd
    assert unwrap_optimizers([Wrapper(sgd), other, sgd]) == [sgd, other]
    assert unwrap_optimizers(sgd) == [sgd]
    with pytest.raises(ValueError, match="list is empty"):
        unwrap_optimizers([])
    assert parameter_ids(sgd) == {id(weight)}
