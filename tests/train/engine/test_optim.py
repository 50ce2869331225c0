"""Learning rates are those of PyTorch's schedulers, and parameters are grouped by their settings."""

import math
from dataclasses import replace

import pytest
import torch

from spatialgrad.train import OptimizerConfig, ScheduleConfig
from spatialgrad.train.optimizers import build_optimizer, learning_rate


def curve(config, epochs=10, steps=7, largest=0.1):
    return [learning_rate(config, largest, s, steps_per_epoch=steps, epochs=epochs) for s in range(epochs * steps)]


def reference(scheduler, steps=70):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    schedule = scheduler(optimizer)
    values = []
    for _ in range(steps):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return values


def test_cosine_is_pytorchs():
    expected = reference(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 70, eta_min=0.001))
    assert curve(ScheduleConfig(min_lr=0.001)) == pytest.approx(expected, rel=1e-6)


def test_poly_is_pytorchs():
    expected = reference(lambda o: torch.optim.lr_scheduler.PolynomialLR(o, 70, power=0.9))
    assert curve(ScheduleConfig(name="poly")) == pytest.approx(expected, rel=1e-6)


def test_step_is_pytorchs():
    expected = reference(lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [21, 42], gamma=0.1))
    assert curve(ScheduleConfig(name="step", milestones=(3, 6))) == pytest.approx(expected)


def test_constant():
    assert set(curve(ScheduleConfig(name="constant"))) == {0.1}


def test_warmup_rises_and_then_the_schedule_begins():
    values = curve(ScheduleConfig(warmup_epochs=2))
    assert values[:14] == pytest.approx([0.1 * (step + 1) / 15 for step in range(14)])
    assert values[14] == pytest.approx(0.1)
    assert values[14:] == sorted(values[14:], reverse=True)
    assert values[-1] < 0.001


def test_a_fraction_of_an_epoch_of_warmup():
    """Three and a half steps: the fourth has the peak, and the schedule has begun by half a step at the fifth."""
    values = curve(ScheduleConfig(warmup_epochs=0.5))
    assert values[:4] == pytest.approx([0.1 * share for share in (0.25, 0.5, 0.75, 1)])
    expected = [0.1 * (1 + math.cos(math.pi * (step - 3.5) / 66.5)) / 2 for step in range(4, 70)]
    assert values[4:] == pytest.approx(expected)


def test_less_than_a_step_of_warmup():
    """The first step has the peak, whatever comes after it."""
    assert curve(ScheduleConfig(warmup_epochs=0.1, name="constant")) == [0.1] * 70


def test_weight_decay_without_norms_and_biases():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(4, 2))
    config = OptimizerConfig(name="sgd", weight_decay=1e-4, decay_norms_and_biases=False)
    decay, rest = build_optimizer(config, model).param_groups
    assert [tuple(p.shape) for p in decay["params"]] == [(4, 3, 3, 3), (2, 4)]
    assert [p.ndim for p in rest["params"]] == [1] * 4
    assert (decay["weight_decay"], rest["weight_decay"]) == (1e-4, 0.0)
    (everything,) = build_optimizer(replace(config, decay_norms_and_biases=True), model).param_groups
    assert len(everything["params"]) == 6
