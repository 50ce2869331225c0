import pytest
import torch
from torch import nn

from spatialgrad.torch_utils.optimizers import (
    act_on_gradients,
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


class TestActingOnGradients:
    """All gradients are 1; the action doubles them, so that a step of rate 1 goes from 0 to −2."""

    @staticmethod
    def double_before_step(optimizer, weight):
        def hook(_, args, kwargs):
            return act_on_gradients(lambda: weight.grad.mul_(2), args, kwargs)

        optimizer.register_step_pre_hook(hook)

    @pytest.fixture
    def closure(self, weight):
        def closure():
            assert torch.is_grad_enabled()
            weight.grad = None
            loss = weight.sum()
            loss.backward()
            return loss

        return closure

    def test_without_a_closure(self, sgd, weight, closure):
        self.double_before_step(sgd, weight)
        closure()
        assert sgd.step() is None
        assert weight.item() == -2

    def test_after_a_closure(self, sgd, weight, closure):
        self.double_before_step(sgd, weight)
        assert sgd.step(closure).requires_grad
        assert weight.item() == -2
        sgd.step(closure=closure)
        assert weight.item() == -4

    def test_after_every_call_of_a_closure(self, weight, closure):
        seen = []

        class Twice(torch.optim.SGD):
            def step(self, closure):
                for _ in range(2):
                    closure()
                    seen.append(weight.grad.item())

        optimizer = Twice([weight], lr=1.0)
        self.double_before_step(optimizer, weight)
        optimizer.step(closure)
        assert seen == [2, 2]
