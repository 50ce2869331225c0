"""Gradients are scaled when the optimizer steps, and a hook that never fires is noticed."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from spatialgrad import NoEffectWarning, SpatialGradientScaling, scale_gradients_, scaling_from_ratios
from spatialgrad.sgs import step_hook
from support.common import same_matrices
from support.scaling import build, images, small_net, train


class TestStepping:
    def test_gradients_are_multiplied_before_the_optimizer_uses_them(self):
        model, optimizer, _ = build(scalings={"0": scaling_from_ratios(2, 4)}, measure=None)
        reference = copy.deepcopy(model)
        plain = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            x, y = images(), torch.randint(0, 5, (16,))
            for net, opt in ((model, optimizer), (reference, plain)):
                torch.manual_seed(1)
                opt.zero_grad()
                F.cross_entropy(net(x), y).backward()
                if opt is plain:
                    scale_gradients_(net, {"0": scaling_from_ratios(2, 4)})
                opt.step()
        for p, q in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(p, q)

    @pytest.mark.bits
    def test_ones_change_nothing_bit_for_bit(self):
        models = []
        for scaled in (False, True):
            torch.manual_seed(0)
            model = small_net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            if scaled:
                SpatialGradientScaling(model, optimizer)
            train(model, optimizer)
            models.append(model)
        assert all(map(torch.equal, *(m.state_dict().values() for m in models)))

    def test_a_hook_that_never_fires_is_noticed_within_four_steps(self):
        model, _, _ = build()
        another = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, another, steps=3)
        with pytest.warns(NoEffectWarning, match=r"step\(\) did not run.*sgs.attach"):
            train(model, another, steps=1)
        train(model, another, steps=8)  # once is enough: warnings are errors here

    def test_gradients_that_only_pile_up_are_noticed_too(self, monkeypatch):
        monkeypatch.setattr(step_hook, "PATIENCE", 5)
        model, _, _ = build()
        for _ in range(4):
            model(images()).sum().backward()
        with pytest.warns(NoEffectWarning, match="5 backward passes"):
            model(images()).sum().backward()

    def test_gradient_accumulation_is_not_mistaken_for_it(self):
        model, optimizer, _ = build()
        for step in range(30):
            model(images()).sum().backward()
            if step % 6 == 5:
                optimizer.step()

    def test_modules_that_share_a_weight_are_scaled_once(self):
        model = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.Conv2d(3, 3, 3, padding=1, bias=False))
        model[1].weight = model[0].weight
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        G = scaling_from_ratios(2, 4)
        SpatialGradientScaling(model, optimizer, measure=None, scalings=G)
        model(images()).sum().backward()
        gradient, before = model[0].weight.grad.clone(), model[0].weight.detach().clone()
        optimizer.step()
        torch.testing.assert_close(model[0].weight, before - gradient * G.float())

    @pytest.mark.parametrize("apply", ["gradient", "update"])
    @pytest.mark.parametrize("closure", [False, True])
    def test_a_step_that_calls_the_step_of_its_base_class_scales_once(self, apply, closure):
        class Failing(torch.optim.SGD):
            fail = False

            def step(self, closure=None):
                result = super().step(closure)
                if self.fail:
                    raise RuntimeError("full disk")
                return result

        def backward():
            optimizer.zero_grad()
            loss = model(x).sum()
            loss.backward()
            gradients.append(model[0].weight.grad.clone())
            return loss

        model, x, G = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False)), images(), scaling_from_ratios(2, 4).float()
        torch.optim.SGD(model.parameters(), lr=1.0)  # torch hooks into a class's step when it is first used
        optimizer = Failing(model.parameters(), lr=1.0)
        SpatialGradientScaling(model, optimizer, measure=None, scalings=G, apply=apply)
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

    def test_moving_the_model_moves_the_scalings(self):
        model, optimizer, _ = build(scalings=scaling_from_ratios(2, 2), measure=None)
        model.double()
        train_input = images().double()
        model(train_input).sum().backward()
        gradient = model[0].weight.grad.clone()
        optimizer.step()
        torch.testing.assert_close(model[0].weight.grad, gradient * scaling_from_ratios(2, 2), atol=1e-6, rtol=1e-6)


def test_scale_gradients_names_what_is_wrong():
    model = small_net()
    with pytest.raises(KeyError, match="no convolution 'conv9'; it has 0, 3, 5"):
        scale_gradients_(model, {"conv9": torch.ones(3, 3)})
    with pytest.raises(ValueError, match=r"'0' has shape \(2, 2\)"):
        scale_gradients_(model, {"0": torch.ones(2, 2)})
    scale_gradients_(model, {"0": torch.ones(3, 3)})  # no gradient yet: nothing to do


@pytest.mark.parametrize("bad", [{"conv9": torch.ones(3, 3)}, {"3": torch.ones(9, 9)}, {"3": torch.full((1, 3), -1.0)}])
def test_scale_gradients_scales_nothing_if_anything_is_wrong(bad):
    model = small_net()
    model(images()).sum().backward()
    before = model[0].weight.grad.clone()
    with pytest.raises((KeyError, ValueError)):
        scale_gradients_(model, {"0": scaling_from_ratios(2, 4), **bad})
    assert torch.equal(model[0].weight.grad, before)


def test_scale_gradients_of_torch_func_by_name():
    model, G = small_net().eval(), scaling_from_ratios(2, 4).float()
    params = {name: parameter.detach() for name, parameter in model.named_parameters()}
    gradients = torch.func.grad(lambda params: torch.func.functional_call(model, params, images()).sum())(params)
    plain = {name: gradient.clone() for name, gradient in gradients.items()}
    with pytest.raises(KeyError, match="no convolution 'conv9'; it has 0, 3, 5"):
        scale_gradients_(gradients, {"0": G, "conv9": torch.ones(3, 3)})
    with pytest.raises(ValueError, match=r"'3' has shape \(9, 9\)"):
        scale_gradients_(gradients, {"0": G, "3": torch.ones(9, 9)})
    assert same_matrices(gradients, plain)
    scale_gradients_(gradients, {"0": G})
    assert torch.equal(gradients.pop("0.weight"), plain.pop("0.weight") * G)
    assert same_matrices(gradients, plain)
    gradient = torch.ones(2, 2, 3, 3)
    scale_gradients_({"weight": gradient}, {"": G})  # the model is a convolution
    assert torch.equal(gradient, G.expand(2, 2, 3, 3))


def test_two_steps_without_zero_grad_scale_the_same_gradient_twice():
    G = scaling_from_ratios(2, 4).float()
    for apply, expected in (("gradient", G * G), ("update", torch.ones(3, 3))):
        model, optimizer, _ = build(scalings={"0": G}, measure=None, apply=apply)
        model(images()).sum().backward()
        before = model[0].weight.grad.clone()
        optimizer.step()
        optimizer.step()
        torch.testing.assert_close(model[0].weight.grad, before * expected)
