import pytest
import torch
from torch import nn

from spatialgrad.utils.optimizers import (
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


class Twice(torch.optim.SGD):
    """Evaluates its closure twice before it steps."""

    @torch.no_grad()
    def step(self, closure):
        loss = [closure(), closure()][1]
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad)
        return loss


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        (torch.optim.SGD, lambda optimizer, closure: closure() and optimizer.step()),
        (torch.optim.SGD, lambda optimizer, closure: optimizer.step(closure)),
        (torch.optim.SGD, lambda optimizer, closure: optimizer.step(closure=closure)),
        (Twice, lambda optimizer, closure: optimizer.step(closure)),
    ],
)
def test_acting_on_gradients_as_soon_as_they_are_there(kind, step, weight):
    """All gradients are 1; the action doubles them, so that a step of rate 1 goes from 0 to −2."""

    def closure():
        assert torch.is_grad_enabled()
        weight.grad = None
        loss = (weight + 1).sum()
        loss.backward()
        evaluations.append(loss)
        return loss

    def double():
        assert weight.grad.item() == 1  # not twice
        weight.grad.mul_(2)

    evaluations, optimizer = [], kind([weight], lr=1.0)
    optimizer.register_step_pre_hook(lambda _, args, kw: act_on_gradients(double, args, kw))
    loss = step(optimizer, closure)
    assert weight.item() == -2
    assert loss is None or loss.requires_grad
    assert len(evaluations) == (2 if kind is Twice else 1)
