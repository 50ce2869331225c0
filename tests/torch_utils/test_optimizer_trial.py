"""How optimizers treat gradients, found out without a list."""

import copy

import pytest
import torch
from torch import nn

from spatialgrad.torch_utils.optimizer_trial import try_optimizer
from support.optimizers import Anchored, GroupsOnly, HomeMadeSGD, Lion, ScheduleFree, SGDFromModel, SignSGD, SlowWeights

optim = torch.optim

LINEAR = [
    (optim.SGD, {"lr": 0.1}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
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
    (optim.Adam, {"lr": 0.0, "weight_decay": 0.1, "amsgrad": True}),
    (optim.Adam, {"lr": 1e-9, "fused": True}),
    (optim.Adamax, {}),
    (optim.AdamW, {"weight_decay": 1.0}),
    (optim.NAdam, {}),
    (optim.RAdam, {}),
    (optim.RMSprop, {"momentum": 0.9, "centered": True}),
    (optim.Rprop, {}),
    (Lion, {}),
    (SignSGD, {}),
    (ScheduleFree, {"adaptive": True}),
]


def trial_of(kind, settings):
    weight = nn.Parameter(torch.rand(8, 4, 3, 3))
    return try_optimizer(kind([weight], **settings), weight)


@pytest.mark.parametrize(("kind", "settings"), LINEAR)
def test_linear_optimizers_pass_a_factor_on(kind, settings):
    trial = trial_of(kind, settings)
    assert trial.linear
    assert trial.adds_up == (kind is not ScheduleFree)
    assert trial.passed_on == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("kind", "settings"), OTHERS)
def test_other_optimizers_do_not(kind, settings):
    trial = trial_of(kind, settings)
    assert not trial.linear
    assert trial.adds_up == (kind is not ScheduleFree)
    assert trial.passed_on == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize(
    ("kind", "copies"),
    [
        (ScheduleFree, ("z",)),
        (Anchored, ("start",)),
        (SlowWeights, ("slow",)),
        (optim.ASGD, ()),  # keeps an average, which it does not use
        (optim.Adam, ()),
        (optim.SGD, ()),
    ],
)
def test_copies_of_the_weights(kind, copies):
    assert trial_of(kind, {}).own_copies == copies
    if "weight_decay" in kind([torch.zeros(1)]).defaults:
        assert trial_of(kind, {"weight_decay": 0.5}).own_copies == copies


@pytest.mark.parametrize(("sign", "linear"), [(True, False), (False, True)])
def test_optimizers_that_accept_nothing_but_groups(sign, linear):
    weight = nn.Parameter(torch.rand(8, 4, 3, 3))
    group = {"params": [weight], "use_sign": sign, "lr": 0.0, "weight_decay": 0.5, "coefficients": [1.0]}
    optimizer = GroupsOnly([group])
    trial = try_optimizer(optimizer, weight)
    assert trial.linear == linear
    assert trial.own_copies == ()
    assert group["coefficients"] == [1.0]


def test_the_group_s_own_settings_count():
    first, second = (nn.Parameter(torch.rand(2, 2, 3, 3)) for _ in range(2))
    groups = [{"params": [first]}, {"params": [second], "adaptive": True}]
    optimizer = ScheduleFree(groups)
    assert try_optimizer(optimizer, first).linear
    assert not try_optimizer(optimizer, second).linear


def test_what_cannot_be_tried():
    model = nn.Conv2d(2, 2, 3)
    assert try_optimizer(SGDFromModel(model, 0.1), model.weight) is None
    assert try_optimizer(optim.LBFGS(model.parameters()), model.weight) is None  # needs a closure
    assert try_optimizer(optim.SparseAdam(model.parameters()), model.weight) is None


def test_nothing_else_changes():
    weight = nn.Parameter(torch.rand(2, 2, 3, 3))
    optimizer = optim.Adam([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    before, random = copy.deepcopy((weight, optimizer.state_dict())), torch.get_rng_state()
    try_optimizer(optimizer, weight)
    assert torch.equal(weight, before[0])
    assert str(optimizer.state_dict()) == str(before[1])
    assert torch.equal(torch.get_rng_state(), random)
