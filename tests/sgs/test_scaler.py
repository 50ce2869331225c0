"""The class itself: attaching, state, schedule and settings."""

import copy
import io
import math

import pytest
import torch

from spatialgrad import NoEffectWarning, SpatialGradientScaling, scaling_from_ratios
from spatialgrad.sgs.settings import Settings
from support.common import TinyNet, batches, same_weights, train_
from support.scaling import build, images, train

G = scaling_from_ratios(2, 4).float()


def scales(model, optimizer, by=1):
    """Whether a step multiplies the first gradient by a factor."""
    model(images()).sum().backward()
    gradient = model[0].weight.grad.clone()
    optimizer.step()
    return torch.allclose(model[0].weight.grad, gradient * by)


class TestAttaching:
    def test_detach_and_context_manager(self):
        model, optimizer, sgs = build(scalings=G, measure=None)
        with sgs:
            assert len(optimizer._optimizer_step_pre_hooks) == 1
        assert not optimizer._optimizer_step_pre_hooks
        assert not model[0].weight._post_accumulate_grad_hooks
        assert "detached" in repr(sgs)
        assert scales(model, optimizer, by=1)
        sgs.detach()

    def test_attach_moves_to_another_optimizer(self):
        model, optimizer, sgs = build()
        other = torch.optim.Adam(model.parameters())
        sgs.attach(other)
        assert not optimizer._optimizer_step_pre_hooks
        assert sgs.apply == "update"
        with pytest.raises(ValueError, match="holds none of the model's convolution weights"):
            sgs.attach(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1))
        assert len(other._optimizer_step_pre_hooks) == 1

    def test_an_optimizer_that_lacks_some_layers(self):
        model, _, sgs = build(scalings={"0": G}, measure=None)
        part = torch.optim.SGD(model[3:].parameters(), lr=0.1)
        with pytest.warns(NoEffectWarning, match="Convolutions 0 are not in the optimizer and are no longer scaled"):
            sgs.attach(part)
        sgs.attach(part)  # warnings are errors here
        assert scales(model, part, by=1)
        assert sgs.skipped["0"] == "its weight is not in this optimizer"

    def test_scaling_twice_is_refused_or_replaced(self):
        model, optimizer, first = build(scalings={"0": G}, measure=None)
        with pytest.raises(ValueError, match=r"scale twice. Call sgs.detach\(\) .* replace=True"):
            SpatialGradientScaling(model, optimizer)
        second = SpatialGradientScaling(model, optimizer, measure=None, scalings={"0": 2 * G}, replace=True)
        assert scales(model, optimizer, by=2 * G)
        first.attach(optimizer, replace=True)
        first.attach(optimizer)
        assert len(optimizer._optimizer_step_pre_hooks) == 1
        second.detach()
        both = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
        with pytest.raises(ValueError, match="in several of the optimizers"):
            SpatialGradientScaling(model, both)


# What a state must not be, with what is said about it.
GARBLED = [
    (lambda s: None, "Not a state_dict"),
    (lambda s: {"num_updates": 3}, "Not a state_dict.*scalings"),
    (lambda s: s | {"scalings": {"0": G}}, "another architecture: missing 3"),
    (lambda s: s | {"scalings": s["scalings"] | {"9": G}}, "unexpected 9"),
    (lambda s: s | {"dependence": {"9": G}}, "unexpected 9"),
    (lambda s: s | {"scalings": s["scalings"] | {"0": torch.ones(5, 5)}}, r"'0' has shape \(5, 5\)"),
    (lambda s: s | {"scalings": s["scalings"] | {"3": torch.full((1, 3), -1.0)}}, "'3' must be finite and non-neg"),
    (lambda s: s | {"scalings": s["scalings"] | {"0": "x"}}, "'0' has type str"),
    (lambda s: s | {"scalings": s["scalings"] | {"0": None}}, "'0' has type NoneType"),
    (lambda s: s | {"scalings": 5}, "Not a state_dict"),
    (lambda s: s | {"scalings": [G]}, "Not a state_dict"),
    (lambda s: s | {"dependence": 5}, "Not a state_dict"),
    (lambda s: s | {"dependence": None}, "Not a state_dict"),
    (lambda s: s | {"dependence": {"0": "x"}}, "Not a state_dict"),
    (lambda s: s | {"live": [{"step": 3}]}, "Not a state_dict.*updating"),
    *((lambda s, bad=bad: s | {"num_updates": bad}, "Not a state_dict") for bad in ("x", None, [1])),
]


class TestState:
    @pytest.mark.parametrize(("garble", "message"), GARBLED)
    def test_garbled_states_are_refused_and_change_nothing(self, garble, message):
        _, _, sgs = build()
        good = build(scalings=G, measure=None)[2].state_dict() | {"num_updates": 3}
        before = str(sgs.state_dict())
        with pytest.raises(ValueError, match=message):
            sgs.load_state_dict(garble(good))
        assert str(sgs.state_dict()) == before
        sgs.load_state_dict(good)
        assert sgs.num_updates == 3

    def test_what_is_given_out_are_copies(self):
        _, _, sgs = build()
        sgs.update(images())
        before = str(sgs.state_dict())
        for given in (sgs.scalings, sgs.dependence, sgs.state_dict()["scalings"], sgs.state_dict()["dependence"]):
            given["0"].zero_()
        sgs.skipped.clear()
        assert str(sgs.state_dict()) == before
        assert sgs.skipped

    @pytest.mark.bits
    @pytest.mark.parametrize("apply", ["gradient", "update"])
    def test_resume_is_bit_exact(self, apply):
        def fresh(seed=0):
            torch.manual_seed(seed)
            model = TinyNet()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            return model, optimizer, SpatialGradientScaling(model, optimizer, every=3, apply=apply)

        def train_epochs(model, optimizer, sgs, epochs):
            for epoch in epochs:
                if sgs.due(epoch):  # 1 and 3
                    sgs.update(batches(2))
                train_(model, optimizer, batches(3))

        whole, stopped, resumed = fresh(), fresh(), fresh(seed=99)
        train_epochs(*whole, range(5))
        train_epochs(*stopped, range(2))
        file = io.BytesIO()
        torch.save([part.state_dict() for part in stopped], file)
        file.seek(0)
        for part, state in zip(resumed, torch.load(file, weights_only=True), strict=True):
            part.load_state_dict(state)
        train_epochs(*resumed, range(2, 5))
        assert same_weights(whole[0], resumed[0])
        assert str(whole[2].state_dict()) == str(resumed[2].state_dict())
        assert resumed[2].num_updates == 2


class TestSetScalings:
    def test_by_name_or_for_all_of_a_kernel_size(self):
        _, _, sgs = build()
        sgs.set_scalings(G)
        assert torch.equal(sgs.scalings["0"], G)
        assert torch.equal(sgs.scalings["3"], torch.ones(1, 3))
        sgs.set_scalings({"3": torch.tensor([[1.0, 2.0, 1.0]])})
        assert torch.equal(sgs.scalings["3"], torch.tensor([[1.0, 2.0, 1.0]]))

    def test_a_factor_for_every_element(self):
        model, optimizer, sgs = build(measure=None)
        factors = torch.rand(8, 3, 3, 3)
        sgs.set_scalings({"0": factors})
        assert scales(model, optimizer, by=factors)
        assert torch.equal(copy.deepcopy(sgs).scalings["0"], factors)

    @pytest.mark.parametrize(
        ("bad", "error", "message"),
        [
            (torch.ones(9, 9), ValueError, "No convolution has a kernel of shape"),
            ({"0": G, "5": torch.ones(1, 1)}, KeyError, r"5 \(1×1 kernel"),
            ({"0": G, "9": G}, KeyError, r"9 \(no such convolution\); choose from 0, 3"),
            ({"0": G, "3": torch.full((1, 3), math.nan)}, ValueError, "finite"),
            ({"0": G, "3": torch.ones(3, 3)}, ValueError, r"'3' has shape \(3, 3\)"),
        ],
    )
    def test_nothing_is_set_if_anything_is_wrong(self, bad, error, message):
        _, _, sgs = build()
        with pytest.raises(error, match=message):
            sgs.set_scalings(bad)
        assert torch.equal(sgs.scalings["0"], torch.ones(3, 3))


class TestSettings:
    def test_the_schedule_in_epochs(self):
        for warmup, every, due in ((1, 5, [1, 5, 10, 15]), (0, 8, [0, 8, 16]), (3, 5, [3, 5, 10, 15])):
            _, _, sgs = build(warmup=warmup, every=every)
            assert [epoch for epoch in range(17) if sgs.due(epoch)] == due

    def test_static_scalings_are_never_due(self):
        model, optimizer, sgs = build(measure=None)
        assert not any(sgs.due(epoch) for epoch in range(10))
        assert "static" in repr(sgs)
        with pytest.raises(RuntimeError, match="static"):
            sgs.update(images())
        train(model, optimizer)

    def test_an_honest_repr(self):
        _, _, sgs = build(k=3, warmup=2, every=7)
        assert repr(sgs) == (
            "SpatialGradientScaling(2 convolutions, 1 skipped, measure='mutual-information', k=3, "
            "apply='gradient', warmup=2, every=7, updates=0, attached to SGD)"
        )
        assert (sgs.measure, sgs.k) == ("mutual-information", 3)

    @pytest.mark.parametrize(
        ("settings", "error", "message"),
        [
            ({"k": 0}, ValueError, "Invalid k: 0"),
            ({"k": "5"}, ValueError, "Invalid k: '5'"),
            ({"measure": "covariance"}, ValueError, "Invalid measure: 'covariance'; choose 'mutual-information'"),
            *(({"warmup": bad}, ValueError, f"warmup={bad!r}") for bad in (-1, 0.5, "1")),
            *(({"every": bad}, ValueError, f"every={bad!r}") for bad in (0, 1.5, True, math.nan)),
            ({"bins": 0}, ValueError, "bins"),
            *(({"max_channels": bad}, ValueError, f"Invalid max_channels: {bad!r}") for bad in (0, "256 MB")),
            ({"apply": "weights"}, ValueError, "Invalid apply: 'weights'; choose from"),
            ({"live": 3}, ValueError, "Invalid live: 3"),
            ({"live": True, "measure": None}, ValueError, "static"),
            ({"live": True, "warmup": 3}, ValueError, r"live=Live\(at=\.\.\."),
            ({"live": True, "every": 1}, ValueError, "count epochs, but live updates count optimizer steps"),
            ({"dependence": "autocorrelation"}, TypeError, "unexpected keyword argument 'dependence'"),
        ],
    )
    def test_invalid_settings_are_refused_also_without_a_model(self, settings, error, message):
        for use in (build, Settings):
            with pytest.raises(error, match=message):
                use(**settings)
