"""The whole of G reaches the weights, whatever the optimizer; or the user is told that it does not."""

import pytest
import torch
from torch import nn

from spatialgrad import NoEffectWarning, SpatialGradientScaling, scaling_from_ratios
from support.optimizers import (
    Anchored,
    ASGDFromModel,
    DistanceAdapted,
    HiddenSlowWeights,
    HomeMadeSGD,
    Lion,
    NormalizedAnchored,
    Restarting,
    ScheduleFree,
    SGDFromModel,
    SignSGD,
    SlowWeights,
)
from support.scaling import images, small_net, train

optim = torch.optim

PLACES = [
    (optim.SGD, {"lr": 0.1}, "gradient"),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9}, "gradient"),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}, "gradient"),
    (optim.SGD, {"lr": 0.1, "weight_decay": 1e-4}, "gradient"),
    (optim.ASGD, {"lr": 0.1}, "gradient"),
    (HomeMadeSGD, {}, "gradient"),
    (ScheduleFree, {}, "gradient"),
    (optim.Adam, {}, "update"),
    (optim.AdamW, {}, "update"),
    (optim.Adagrad, {}, "update"),
    (optim.RMSprop, {}, "update"),
    (optim.Adafactor, {}, "update"),
    (Lion, {}, "update"),
    (SignSGD, {"lr": 0.1}, "update"),
    (DistanceAdapted, {}, "update"),
    (NormalizedAnchored, {}, "gradient"),  # not linear, but scaled updates would not add up
]


def scaled(kind, settings, **options):
    model = small_net()
    optimizer = kind(model.parameters(), **settings)
    if isinstance(optimizer, ScheduleFree):
        optimizer.train()
    return model, optimizer, SpatialGradientScaling(model, optimizer, measure=None, **options)


def moved(model, optimizer, steps=20):
    """How much further the centre moves than the corners, under gradients that do not depend on the weights."""
    weight = model[0].weight
    before = weight.detach().clone()
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    distance = (weight.detach() - before).abs().mean((0, 1))
    return float(distance[1, 1] / distance[::2, ::2].mean())


@pytest.mark.parametrize(("kind", "settings", "place"), PLACES)
def test_auto_lets_all_of_g_arrive(kind, settings, place):
    torch.manual_seed(0)
    model, optimizer, sgs = scaled(kind, settings)
    assert sgs.apply == place
    assert f"apply={place!r}, static" in repr(sgs)
    plain = moved(model, optimizer)
    sgs.detach()
    torch.manual_seed(0)
    model, optimizer, sgs = scaled(kind, settings, scalings=scaling_from_ratios(4, 8))
    assert moved(model, optimizer) / plain == pytest.approx(8, rel=0.05)


@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW, optim.Adagrad, optim.RMSprop, optim.Adafactor, Lion])
def test_scaling_the_gradient_without_effect_is_reported_once(kind):
    model = small_net()
    optimizer = kind(model.parameters())
    with pytest.warns(NoEffectWarning, match=f"{kind.__name__} divides factors .* Use apply='auto' or 'update'"):
        sgs = SpatialGradientScaling(model, optimizer, apply="gradient")
    sgs.attach(optimizer)  # warnings are errors here
    train(model, optimizer)


@pytest.mark.parametrize("kind", [Anchored, SlowWeights])
def test_optimizers_with_weights_of_their_own_are_refused(kind):
    model = small_net()
    for apply in ("auto", "update"):
        optimizer = kind(model.parameters())
        with pytest.raises(
            ValueError, match=f"{kind.__name__} calculates the weights from a copy .* an optimizer without"
        ):
            SpatialGradientScaling(model, optimizer, apply=apply)
        assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("kind", [Restarting, HiddenSlowWeights])
def test_scaled_updates_that_do_not_add_up_are_refused(kind):
    for apply in ("auto", "update"):
        with pytest.raises(ValueError, match=f"{kind.__name__} .* something other than the weights .* not add up"):
            scaled(kind, {}, apply=apply)


def test_schedule_free_optimizers():
    with pytest.raises(ValueError, match="Use apply='gradient': ScheduleFree passes all of G on"):
        scaled(ScheduleFree, {}, apply="update")
    with pytest.raises(ValueError, match=r"a copy of its own \(in its state: 'z'\)"):
        scaled(ScheduleFree, {"adaptive": True})


def test_an_optimizer_that_is_refused_leaves_the_old_one_attached():
    model, optimizer, sgs = scaled(optim.SGD, {"lr": 0.1})
    with pytest.raises(ValueError, match="a copy of its own"):
        sgs.attach(Anchored(model.parameters()))
    assert len(optimizer._optimizer_step_pre_hooks) == 1


@pytest.mark.parametrize(
    ("optimizer", "place"),
    [
        (lambda model: optim.LBFGS(model.parameters()), "gradient"),
        (lambda model: SGDFromModel(model, 0.1), "gradient"),
        (lambda model: ASGDFromModel(model, 0.1), "gradient"),
        (lambda model: optim.SparseAdam(model.parameters()), "update"),
    ],
)
def test_what_cannot_be_tried_is_assumed(optimizer, place):
    model = small_net()
    sgs = SpatialGradientScaling(model, optimizer(model))
    assert sgs.apply == place
    assert f"apply={place!r} (assumed)" in repr(sgs)


def test_a_schedule_that_starts_at_zero():
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    optimizer = optim.Adam(model.parameters())
    optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    model(images()).sum().backward()
    assert SpatialGradientScaling(model, optimizer).apply == "update"
