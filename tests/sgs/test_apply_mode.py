"""The whole of G reaches the weights, whatever the optimizer; or the user is told that it does not."""

import copy

import pytest
import torch

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
from support.scaling import small_net, train

optim = torch.optim
G = scaling_from_ratios(4, 8)


def scaled(kind, settings, **options):
    torch.manual_seed(0)
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


@pytest.mark.parametrize(
    ("kind", "settings", "apply"),
    [
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
    ],
)
def test_auto_lets_all_of_g_arrive(kind, settings, apply):
    model, optimizer, sgs = scaled(kind, settings)
    assert sgs.apply == apply
    assert f"apply={apply!r}, static" in repr(sgs)
    plain = moved(model, optimizer)
    model, optimizer, sgs = scaled(kind, settings, scalings=G)
    assert moved(model, optimizer) / plain == pytest.approx(8, rel=0.05)


def test_each_group_has_its_own_mode():
    class SignOrNot(optim.Optimizer):
        def __init__(self, params, sign=False):
            super().__init__(params, {"lr": 0.1, "sign": sign})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(group["lr"] * (p.grad.sign() if group["sign"] else p.grad))

    model = small_net()
    optimizer = SignOrNot([{"params": model[0].parameters()}, {"params": model[3].parameters(), "sign": True}])
    sgs = SpatialGradientScaling(model[:4], optimizer, measure=None, scalings={"0": G, "3": torch.ones(1, 3)})
    assert {name: layer.mode.apply for name, layer in sgs._layers.items()} == {"0": "gradient", "3": "update"}
    assert sgs.apply == "auto"


class TestWeightDecay:
    """G multiplies what comes from the gradient, and not the decay."""

    @pytest.mark.parametrize(
        ("kind", "settings"),
        [
            (optim.AdamW, {}),
            (optim.AdamW, {"fused": True}),
            (optim.Adafactor, {}),
            (optim.NAdam, {"decoupled_weight_decay": True}),
            (optim.RAdam, {"decoupled_weight_decay": True}),
        ],
    )
    def test_without_a_gradient_every_position_decays_equally(self, kind, settings):
        model, optimizer, sgs = scaled(kind, {"lr": 0.1, "weight_decay": 0.1, **settings}, scalings=G)
        assert sgs.apply == "update"
        before = model[0].weight.detach().clone()
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        torch.testing.assert_close(model[0].weight, before * 0.99)

    def test_it_follows_schedules_of_rate_and_decay_and_weights_without_gradients_stay(self):
        model, optimizer, _ = scaled(optim.AdamW, {"lr": 0.1, "weight_decay": 0.1}, scalings=G)
        optimizer.param_groups[0].update(lr=0.2, weight_decay=0.3)
        before = copy.deepcopy(model)
        model[0].weight.grad = torch.zeros_like(model[0].weight)
        optimizer.step()
        torch.testing.assert_close(model[0].weight, before[0].weight * 0.94)
        assert torch.equal(model[3].weight, before[3].weight)

    @pytest.mark.parametrize("settings", [{"momentum": 0.9, "weight_decay": 0.1}, {"momentum": 0.9, "nesterov": True}])
    def test_without_decay_both_places_are_the_same_for_sgd(self, settings):
        weights = {}
        for apply in ("gradient", "update"):
            model, optimizer, _ = scaled(optim.SGD, {"lr": 0.1, **settings}, scalings=G, apply=apply)
            torch.manual_seed(0)
            train(model, optimizer, steps=5)
            weights[apply] = model[0].weight.detach()
        # SGD adds its decay to the gradient: as part of the update, it is scaled, too.
        same = torch.allclose(weights["gradient"], weights["update"], rtol=1e-4, atol=1e-6)
        assert same == ("weight_decay" not in settings)


@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW, optim.Adagrad, optim.RMSprop, optim.Adafactor, Lion])
def test_scaling_the_gradient_without_effect_is_reported_once(kind):
    model = small_net()
    optimizer = kind(model.parameters())
    with pytest.warns(NoEffectWarning, match=f"{kind.__name__} normalizes the gradient.* Use apply='auto' or 'update'"):
        sgs = SpatialGradientScaling(model, optimizer, apply="gradient")
    sgs.attach(optimizer)  # warnings are errors here
    train(model, optimizer)


@pytest.mark.parametrize(
    ("kind", "settings", "apply", "way_out"),
    [
        (Anchored, {}, "auto", "Use another optimizer"),
        (Anchored, {}, "update", "Use another optimizer"),
        (SlowWeights, {}, "auto", "Use another optimizer"),
        (SlowWeights, {}, "both", "Use another optimizer"),
        (Restarting, {}, "auto", "Use another optimizer"),
        (HiddenSlowWeights, {}, "update", "Use another optimizer"),
        (ScheduleFree, {"adaptive": True}, "auto", "Use another optimizer"),
        (ScheduleFree, {}, "update", "Use apply='gradient': ScheduleFree passes all of G on"),
    ],
)
def test_optimizers_with_weights_of_their_own_are_refused(kind, settings, apply, way_out):
    message = f"{kind.__name__} keeps its own copy of the weights and would overwrite scaled updates. {way_out}"
    with pytest.raises(ValueError, match=message):
        scaled(kind, settings, apply=apply)


def test_an_optimizer_that_is_refused_leaves_the_old_one_attached():
    model, optimizer, sgs = scaled(optim.SGD, {"lr": 0.1})
    refused = Anchored(model.parameters())
    with pytest.raises(ValueError, match="its own copy"):
        sgs.attach(refused)
    assert len(optimizer._optimizer_step_pre_hooks) == 1
    assert not refused._optimizer_step_pre_hooks


@pytest.mark.parametrize(
    ("optimizer", "apply"),
    [
        (lambda model: optim.LBFGS(model.parameters()), "gradient"),
        (lambda model: SGDFromModel(model, 0.1), "gradient"),
        (lambda model: ASGDFromModel(model, 0.1), "gradient"),
        (lambda model: optim.SparseAdam(model.parameters()), "update"),
    ],
)
def test_what_cannot_be_tried_is_assumed(optimizer, apply):
    model = small_net()
    sgs = SpatialGradientScaling(model, optimizer(model))
    assert sgs.apply == apply
    assert f"apply={apply!r} (assumed)" in repr(sgs)
