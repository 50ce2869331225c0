"""How optimizers treat gradients, found out without a list."""

import copy

import pytest
import torch
from torch import nn

from spatialgrad.utils.optimizer_trial import try_optimizer
from support.optimizers import GroupsOnly, HomeMadeSGD, Lion, ScheduleFree, SignSGD

optim = torch.optim
DECAY = {"weight_decay": 0.1}

# How each treats gradients: linearly or not; and whether it decays weights beside its update.
KINDS = [
    (optim.SGD, {"lr": 0.1}, True, True),  # without momentum, it makes no difference
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, **DECAY}, True, False),
    (optim.SGD, {"lr": 0.0, "momentum": 0.9}, True, False),  # at the beginning of a warm-up
    (optim.SGD, {"lr": torch.tensor(0.1), "fused": True}, True, True),
    (optim.SGD, {"lr": 0.1, "maximize": True}, True, True),
    (optim.ASGD, {}, True, True),
    (HomeMadeSGD, {}, True, False),
    (ScheduleFree, {}, True, False),
    (optim.Adadelta, {}, False, False),
    (optim.Adafactor, {}, False, True),
    (optim.Adagrad, {}, False, False),
    (optim.Adam, DECAY, False, False),
    (optim.Adam, {"lr": 0.0, "amsgrad": True}, False, False),
    (optim.Adam, {"lr": 1e-9, "fused": True}, False, False),
    (optim.Adamax, {}, False, False),
    (optim.AdamW, {"weight_decay": 1.0}, False, True),
    (optim.AdamW, {"weight_decay": 0.0}, False, True),  # a schedule may raise it
    (optim.NAdam, DECAY, False, False),
    (optim.NAdam, {"decoupled_weight_decay": True}, False, True),
    (optim.RAdam, DECAY, False, False),
    (optim.RAdam, {"decoupled_weight_decay": True}, False, True),
    (optim.RMSprop, {"momentum": 0.9, "centered": True, **DECAY}, False, False),
    (optim.Rprop, {}, False, False),
    (Lion, {}, False, False),
    (SignSGD, {}, False, True),
    (ScheduleFree, {"adaptive": True}, False, False),
]


@pytest.fixture
def weight():
    return nn.Parameter(torch.rand(8, 4, 3, 3))


@pytest.mark.parametrize(("kind", "settings", "linear", "decoupled"), KINDS)
def test_how_an_optimizer_treats_gradients(kind, settings, linear, decoupled, weight):
    trial = try_optimizer(kind([weight], **settings), weight)
    assert (trial.linear, trial.decoupled_decay, trial.adds_up) == (linear, decoupled, kind is not ScheduleFree)
    assert trial.passed_on == pytest.approx(1 if linear else 0, abs=0.05)


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
