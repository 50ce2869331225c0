"""How optimizers treat gradients, found out without a list."""

import copy

import pytest
import torch
from torch import nn

from spatialgrad.utils.optimizer_trial import try_optimizer
from support.optimizers import GroupsOnly, HomeMadeSGD, Lion, ScheduleFree, SignSGD

optim = torch.optim
DECAY = {"weight_decay": 0.1}

LINEAR = [
    (optim.SGD, {"lr": 0.1}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, **DECAY}),
    (optim.SGD, {"lr": 0.0}),  # at the beginning of a warm-up
    (optim.SGD, {"lr": torch.tensor(0.1), "fused": True}),
    (optim.SGD, {"lr": 0.1, "maximize": True}),
    (optim.ASGD, {}),
    (HomeMadeSGD, {}),
    (ScheduleFree, {}),
]
OTHERS = [
    (optim.Adadelta, {}),
    (optim.Adafactor, {}),
    (optim.Adagrad, {}),
    (optim.Adam, {}),
    (optim.Adam, {"lr": 0.0, "amsgrad": True, **DECAY}),
    (optim.Adam, {"lr": 1e-9, "fused": True}),
    (optim.Adamax, {}),
    (optim.AdamW, {"weight_decay": 1.0}),
    (optim.NAdam, {}),
    (optim.RAdam, {}),
    (optim.RMSprop, {"momentum": 0.9, "centered": True, **DECAY}),
    (optim.Rprop, {}),
    (Lion, {}),
    (SignSGD, {}),
    (ScheduleFree, {"adaptive": True}),
]
DECOUPLED = [
    (optim.AdamW, {"weight_decay": 0.0}, True),  # a schedule may raise it
    (optim.Adafactor, {}, True),
    (optim.NAdam, {"decoupled_weight_decay": True}, True),
    (optim.RAdam, {"decoupled_weight_decay": True}, True),
    (SignSGD, {}, True),
    (optim.SGD, {}, True),  # without momentum, it makes no difference
    (optim.SGD, {"momentum": 0.9, **DECAY}, False),
    (optim.Adam, DECAY, False),
    (optim.NAdam, DECAY, False),
    (optim.RAdam, DECAY, False),
    (optim.RMSprop, DECAY, False),
    (Lion, {}, False),  # this one has no decay at all
]


@pytest.fixture
def weight():
    return nn.Parameter(torch.rand(8, 4, 3, 3))


@pytest.mark.parametrize(
    ("kind", "settings", "linear"), [(*each, True) for each in LINEAR] + [(*each, False) for each in OTHERS]
)
def test_linear_optimizers_pass_a_factor_on_and_others_do_not(kind, settings, linear, weight):
    trial = try_optimizer(kind([weight], **settings), weight)
    assert trial.linear == linear
    assert trial.adds_up == (kind is not ScheduleFree)
    assert trial.passed_on == pytest.approx(1 if linear else 0, abs=0.05)


@pytest.mark.parametrize(("kind", "settings", "decoupled"), DECOUPLED)
def test_decay_beside_the_update(kind, settings, decoupled, weight):
    assert try_optimizer(kind([weight], **settings), weight).decoupled_decay == decoupled


@pytest.mark.parametrize(("sign", "linear"), [(True, False), (False, True)])
def test_optimizers_that_accept_nothing_but_groups(sign, linear, weight):
    group = {"params": [weight], "use_sign": sign, "lr": 0.0, "weight_decay": 0.5, "coefficients": [1.0]}
    assert try_optimizer(GroupsOnly([group]), weight).linear == linear
    assert group["coefficients"] == [1.0]


def test_nothing_else_changes_and_no_device_is_seeded(weight, monkeypatch):
    seeded = []
    for device in (torch.cuda, torch.mps, torch.xpu):
        for name in {"manual_seed", "manual_seed_all"} & set(dir(device)):
            monkeypatch.setattr(device, name, seeded.append)
    optimizer = optim.Adam([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    before, random = copy.deepcopy((weight, optimizer.state_dict())), torch.get_rng_state()
    try_optimizer(optimizer, weight)
    assert torch.equal(weight, before[0])
    assert str(optimizer.state_dict()) == str(before[1])
    assert torch.equal(torch.get_rng_state(), random)
    assert not seeded
