"""Optimizers by name or by class, their options and groups; learning rates are those of PyTorch's schedulers."""

import math
from dataclasses import replace

import pytest
import torch

from spatialgrad.train import ConfigError, OptimizerConfig, ScheduleConfig
from spatialgrad.train.methods.scaling import MutualInformationScaling
from spatialgrad.train.optimizers import build_optimizer, check_optimizer, learning_rate
from support.common import define_torchvision_operators
from support.training import assert_resumes, tiny

HOME_MADE = "support.optimizers:HomeMadeSGD"
NO_DECAY = {"lr": None, "weight_decay": 0.0}


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


@pytest.mark.parametrize(
    ("config", "scheduler"),
    [
        (ScheduleConfig(min_lr=0.001), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 70, eta_min=0.001)),
        (ScheduleConfig(name="poly"), lambda o: torch.optim.lr_scheduler.PolynomialLR(o, 70, power=0.9)),
        (
            ScheduleConfig(name="step", milestones=(3, 6)),
            lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [21, 42], gamma=0.1),
        ),
    ],
)
def test_schedules_are_pytorchs(config, scheduler):
    assert curve(config) == pytest.approx(reference(scheduler), rel=1e-6)


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


def network():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))


def test_options_reach_the_optimizer():
    config = OptimizerConfig(name="adamw", options=("eps=1e-6", "betas=(0.9, 0.95)", "amsgrad=True"))
    optimizer = build_optimizer(config, network())
    assert type(optimizer) is torch.optim.AdamW
    (group,) = optimizer.param_groups
    assert (group["lr"], group["betas"], group["eps"], group["amsgrad"]) == (1e-3, (0.9, 0.95), 1e-6, True)
    assert group["weight_decay"] == 5e-4


def test_lion_is_timms_where_torch_has_none():
    define_torchvision_operators()
    lion = pytest.importorskip("timm.optim").Lion
    optimizer = build_optimizer(OptimizerConfig(name="lion"), network())
    assert type(optimizer) is getattr(torch.optim, "Lion", lion)
    assert optimizer.param_groups[0]["lr"] == 1e-4


def test_a_class_by_its_path(monkeypatch, tmp_path):
    """Also from the current folder, which is not in the path of an installed command."""
    (tmp_path / "mine_of_this_test.py").write_text(
        "import torch\nclass Mine(torch.optim.SGD):\n"
        "    def __init__(self, params, lr=0.3, weight_decay=0.0):\n"
        "        super().__init__(params, lr=lr, weight_decay=weight_decay)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [each for each in __import__("sys").path if each])
    config = OptimizerConfig(name="mine_of_this_test:Mine")
    assert config.learning_rate == 0.3
    assert build_optimizer(config, network()).param_groups[0]["lr"] == 0.3
    assert OptimizerConfig(name=HOME_MADE, lr=0.5).learning_rate == 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "adamv"}, "unknown --optimizer.name .* 'adamv'; did you mean 'adam"),
        ({"name": "a b:C"}, "--optimizer.name must be a name or package.module:Class, got 'a b:C'"),
        ({"name": "torch.optim:"}, "--optimizer.name must be a name or package.module:Class"),
        ({"options": ("lr=1",)}, "--optimizer.options: lr cannot be set here; use --optimizer.lr"),
        ({"options": ("momentum=0.5",)}, "--optimizer.options: momentum cannot be set here; use --optimizer.momentum"),
    ],
)
def test_bad_values_are_refused_at_once(settings, message):
    with pytest.raises(ConfigError, match=message):
        OptimizerConfig(**settings)


@pytest.mark.parametrize(
    ("name", "apply"),
    [("adamw", "update"), ("lion", "update"), ("support.optimizers:Lion", "update"), (HOME_MADE, "gradient")],
)
def test_scaling_finds_its_place(name, apply, tmp_path):
    define_torchvision_operators()
    config = tiny(tmp_path, "sgs", optimizer={"name": name, **NO_DECAY})
    check_optimizer(config.optimizer)
    model = network()
    method = MutualInformationScaling(config)
    method.attach(model, build_optimizer(config.optimizer, model))
    assert method.sgs.apply == apply


def test_resumed_bit_for_bit(tmp_path):
    optimizer = {"name": "support.optimizers:Lion", **NO_DECAY}
    assert_resumes(lambda folder: tiny(folder, "sgs", epochs=2, optimizer=optimizer), tmp_path, 7)
