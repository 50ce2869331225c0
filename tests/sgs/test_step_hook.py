"""Gradients are scaled once when the optimizer steps, and scaling that has no effect is noticed."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from spatialgrad import Live, NoEffectWarning, SpatialGradientScaling, scale_gradients_, scaling_from_ratios
from spatialgrad.sgs import no_effect
from support.common import same_matrices
from support.scaling import build, images, small_net, train

G = scaling_from_ratios(2, 4).float()


class TestStepping:
    @pytest.mark.bits
    @pytest.mark.parametrize("apply", ["gradient", "update"])
    def test_ones_change_nothing_bit_for_bit(self, apply):
        models = []
        for scaled in (False, True):
            torch.manual_seed(0)
            model, optimizer, sgs = build(apply=apply)
            if not scaled:
                sgs.detach()
            train(model, optimizer)
            models.append(model.state_dict())
        assert same_matrices(*models)

    @pytest.mark.parametrize("apply", ["gradient", "update"])
    def test_a_step_never_disables_gradients_itself(self, apply, monkeypatch):
        """Ctrl-C between the begin and the end of torch.no_grad() may leave them disabled."""
        model, optimizer, _ = build(apply=apply)
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(model(images()).square().mean(), parameters, create_graph=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        entered = []
        before = torch.no_grad.__enter__
        monkeypatch.setattr(torch.no_grad, "__enter__", lambda self: (entered.append(self), before(self))[1])
        hooks = [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]
        for hook in hooks:
            hook(optimizer, (), {})
        assert entered == []
        assert torch.is_grad_enabled()
        assert all(parameter.is_leaf for parameter in parameters)

    def test_modules_that_share_a_weight_are_scaled_once(self):
        model = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.Conv2d(3, 3, 3, padding=1, bias=False))
        model[1].weight = model[0].weight
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        SpatialGradientScaling(model, optimizer, measure=None, scalings=G)
        model(images()).sum().backward()
        gradient, before = model[0].weight.grad.clone(), model[0].weight.detach().clone()
        optimizer.step()
        torch.testing.assert_close(model[0].weight, before - gradient * G)

    def test_converting_the_model_converts_the_scalings(self):
        model, optimizer, _ = build(scalings=scaling_from_ratios(2, 2), measure=None)
        model.double()
        model(images().double()).sum().backward()
        gradient = model[0].weight.grad.clone()
        optimizer.step()
        torch.testing.assert_close(model[0].weight.grad, gradient * scaling_from_ratios(2, 2), atol=1e-6, rtol=1e-6)


class Failing(torch.optim.SGD):
    """Calls the step of its base class, and may fail afterwards."""

    fail = False

    def step(self, closure=None):
        loss = super().step(closure)
        if self.fail:
            raise RuntimeError("full disk")
        return loss


class TestOnce:
    @pytest.mark.parametrize("closure", [False, True])
    @pytest.mark.parametrize("apply", ["gradient", "update"])
    def test_a_step_within_a_step_and_a_step_that_fails(self, apply, closure):
        def backward():
            optimizer.zero_grad()
            loss = model(x).sum()
            loss.backward()
            gradients.append(model[0].weight.grad.clone())
            return loss

        model, x = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False)), images()
        torch.optim.SGD(model.parameters(), lr=1.0)  # torch hooks into a class's step when it is first used
        optimizer = Failing(model.parameters(), lr=1.0)
        sgs = SpatialGradientScaling(model, optimizer, measure=None, scalings=G, apply=apply)
        for fail in (False, True, False):
            gradients = []
            before = model[0].weight.detach().clone()
            optimizer.fail = fail
            if not closure:
                backward()
            try:
                optimizer.step(backward) if closure else optimizer.step()
            except RuntimeError:
                continue
            torch.testing.assert_close(model[0].weight, before - gradients[0] * G, rtol=1e-4, atol=1e-4)
        assert sgs._progress.steps == 3

    @pytest.mark.parametrize("set_to_none", [False, True])
    def test_steps_without_new_gradients_scale_nothing_again_and_are_not_counted(self, set_to_none):
        model, optimizer, sgs = build(live=Live(at=(1,), every=9))
        sgs.set_scalings({"0": G})
        for steps in (1, 2, 3):
            optimizer.zero_grad(set_to_none=set_to_none)
            model(images()).sum().backward()
            gradient = model[0].weight.grad.clone()
            for _ in range(3):  # such as a step that is tried again
                optimizer.step()
                torch.testing.assert_close(model[0].weight.grad, gradient * G)
                assert sgs.state_dict()["live"][0]["step"] == steps

    def test_a_gradient_that_somebody_replaces_or_changes_is_a_new_one(self):
        model, optimizer, _ = build(scalings={"0": G}, measure=None)
        train(model, optimizer, steps=1)
        weight = model[0].weight
        for change in (lambda: setattr(weight, "grad", torch.ones_like(weight)), lambda: weight.grad.fill_(1)):
            change()
            optimizer.step()
            assert torch.equal(weight.grad, G.expand_as(weight))


class TestNoEffect:
    def test_steps_and_backward_passes_without_ours_are_noticed_once_but_not_accumulation(self, monkeypatch):
        model, optimizer, _ = build(scalings={"0": G})
        another = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, another, steps=3)
        with pytest.warns(NoEffectWarning, match=r"step\(\) was not called in 4 backward passes.*sgs.attach"):
            train(model, another, steps=1)
        train(model, another, steps=8)  # once is enough: warnings are errors here
        monkeypatch.setattr(no_effect, "PATIENCE", 7)
        for step in range(31):
            if step % 6 == 0:
                optimizer.step()
            model(images()).sum().backward()
        for _ in range(6):
            model(images()).sum().backward()
        with pytest.warns(NoEffectWarning, match="7 backward passes"):
            model(images()).sum().backward()

    @pytest.mark.parametrize(
        ("settings", "use", "warns"),
        [
            ({}, lambda sgs: None, True),
            ({}, lambda sgs: sgs.due(0), False),
            ({}, lambda sgs: sgs.update(images()), False),
            ({}, lambda sgs: sgs.set_scalings({"0": G}), False),
            ({"scalings": {"0": G}, "measure": None}, lambda sgs: None, False),
            ({"live": True}, lambda sgs: None, False),
        ],
    )
    def test_steps_without_any_update(self, settings, use, warns, monkeypatch):
        monkeypatch.setattr(no_effect, "PATIENCE", 5)
        model, optimizer, sgs = build(**settings)
        use(sgs)
        train(model, optimizer, steps=4)
        if warns:
            with pytest.warns(NoEffectWarning, match=r"No scaling was measured in 5 steps.*sgs\.due.*live=True"):
                train(model, optimizer, steps=1)
        train(model, optimizer, steps=8)

    @pytest.mark.parametrize("live", [True, False])
    def test_the_end_of_a_training_that_was_never_scaled(self, live):
        model, optimizer, sgs = build(live=live)
        with sgs:
            pass  # no steps: nothing to say
        sgs.attach(optimizer)
        train(model, optimizer)
        advice = "the first live update begins after step 100" if live else "call sgs.update"
        with pytest.warns(NoEffectWarning, match=f"No scaling was measured in 3 steps, .*: {advice}"):
            sgs.detach()
        sgs.attach(optimizer)
        sgs.detach(warn=False)
        sgs.attach(optimizer)
        with pytest.raises(KeyError), sgs:  # an exception is news enough
            raise KeyError


class TestScaleGradients:
    @pytest.mark.parametrize(
        ("bad", "error", "message"),
        [
            ({"conv9": torch.ones(3, 3)}, KeyError, "no convolution 'conv9'; it has 0, 3, 5"),
            ({"3": torch.ones(9, 9)}, ValueError, r"'3' has shape \(9, 9\)"),
            ({"3": torch.full((1, 3), -1.0)}, ValueError, "finite and non-negative"),
        ],
    )
    def test_nothing_is_scaled_if_anything_is_wrong(self, bad, error, message):
        model = small_net()
        scale_gradients_(model, {"0": G})  # no gradient yet: nothing to do
        model(images()).sum().backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        before = copy.deepcopy(gradients)
        for target in (model, gradients):
            with pytest.raises(error, match=message):
                scale_gradients_(target, {"0": G, **bad})
            assert same_matrices(gradients, before)

    def test_gradients_of_torch_func_by_name(self):
        model = small_net().eval()
        params = {name: parameter.detach() for name, parameter in model.named_parameters()}
        gradients = torch.func.grad(lambda params: torch.func.functional_call(model, params, images()).sum())(params)
        plain = {name: gradient.clone() for name, gradient in gradients.items()}
        scale_gradients_(gradients, {"0": G})
        assert torch.equal(gradients.pop("0.weight"), plain.pop("0.weight") * G)
        assert all(torch.equal(gradients[name], plain[name]) for name in gradients)
        gradient = torch.ones(2, 2, 3, 3)
        scale_gradients_({"weight": gradient}, {"": G})  # the model is a convolution
        assert torch.equal(gradient, G.expand(2, 2, 3, 3))

    def test_parametrized_layers_are_not_computed(self):
        model = nn.Sequential(parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)), nn.Conv2d(4, 4, 3))
        model(images()).sum().backward()
        before = copy.deepcopy(model.state_dict())
        scale_gradients_(model, {"1": G})
        assert same_matrices(model.state_dict(), before)
