"""The class itself: attaching, state, schedule and settings."""

import copy
import io
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from spatialgrad import NoEffectWarning, SpatialGradientScaling, scaling_from_ratios
from support.common import same_matrices
from support.scaling import build, images, small_net, train


class TestAttaching:
    def test_detach_and_context_manager(self):
        model, optimizer, sgs = build(scalings=scaling_from_ratios(5, 5), measure=None)
        with sgs:
            assert len(optimizer._optimizer_step_pre_hooks) == 1
        assert not optimizer._optimizer_step_pre_hooks
        assert not model[0].weight._post_accumulate_grad_hooks
        assert "detached" in repr(sgs)
        model(images()).sum().backward()
        gradient = model[0].weight.grad.clone()
        optimizer.step()
        assert torch.equal(model[0].weight.grad, gradient)
        sgs.detach()

    def test_attach_moves_to_another_optimizer(self):
        model, optimizer, sgs = build()
        other = torch.optim.Adam(model.parameters())
        sgs.attach(other)
        assert not optimizer._optimizer_step_pre_hooks
        assert len(other._optimizer_step_pre_hooks) == 1
        with pytest.raises(ValueError, match="does not hold the weights of 0, 3"):
            sgs.attach(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1))
        assert len(other._optimizer_step_pre_hooks) == 1

    def test_scaling_twice_is_refused(self):
        model, optimizer, first = build()
        with pytest.raises(ValueError, match=r"scale twice. Call detach\(\)"):
            SpatialGradientScaling(model, optimizer)
        assert len(optimizer._optimizer_step_pre_hooks) == 1
        first.detach()
        SpatialGradientScaling(model, optimizer).detach()
        first.attach(optimizer)
        first.attach(optimizer)
        other = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ValueError, match="in several of the optimizers"):
            SpatialGradientScaling(model, [torch.optim.SGD(model.parameters(), lr=0.1), other])

    def test_attaching_after_the_first_convolution_was_frozen(self):
        model, optimizer, sgs = build(scalings=scaling_from_ratios(2, 2), measure=None)
        model[0].requires_grad_(False)
        sgs.attach(optimizer)
        copy.deepcopy((model, optimizer, sgs))
        train(model, optimizer)

    def test_a_weight_that_is_pruned_later_is_reported(self):
        model, optimizer, _ = build()
        prune.l1_unstructured(model[0], "weight", amount=0.5)
        with pytest.warns(NoEffectWarning, match="0 were parametrized or pruned"):
            train(model, optimizer, steps=1)

    def test_a_weight_that_is_normalized_later_is_reported(self):
        model, optimizer, _ = build()
        nn.utils.parametrizations.weight_norm(model[0])
        with pytest.warns(NoEffectWarning, match="0 were parametrized or pruned"):
            train(model, optimizer, steps=1)
        train(model, optimizer)  # warnings are errors here


class TestState:
    def test_round_trip_through_a_safe_file(self):
        _, _, sgs = build()
        sgs.update(images())
        file = io.BytesIO()
        torch.save(sgs.state_dict(), file)
        file.seek(0)
        _, _, fresh = build()
        fresh.load_state_dict(torch.load(file, weights_only=True))
        assert fresh.num_updates == 1
        assert same_matrices(fresh.scalings, sgs.scalings)
        assert same_matrices(fresh.dependence, sgs.dependence)

    def test_another_architecture_is_refused(self):
        _, _, sgs = build()
        before = sgs.scalings
        other = build(nn.Sequential(nn.Conv2d(3, 4, 5)))[2].state_dict()
        with pytest.raises(ValueError, match="another architecture: missing 3"):
            sgs.load_state_dict(other)
        good = build(scalings=scaling_from_ratios(2, 4), measure=None)[2].state_dict() | {"num_updates": 3}
        for key in ("scalings", "dependence"):
            wrong_kernel = good | {key: good[key] | {"0": torch.ones(5, 5)}}
            with pytest.raises(ValueError, match=r"'0' has shape \(5, 5\)"):
                sgs.load_state_dict(wrong_kernel)
            with pytest.raises(ValueError, match="unexpected 9"):
                sgs.load_state_dict(good | {key: good[key] | {"9": torch.ones(3, 3)}})
            with pytest.raises(ValueError, match=f"Not a state_dict.* instead of .*{key}"):
                sgs.load_state_dict({name: value for name, value in good.items() if name != key})
        for bad in (-1, 1.5, "3", None, [1]):
            with pytest.raises(ValueError, match="Invalid num_updates in the state_dict"):
                sgs.load_state_dict(good | {"num_updates": bad})
        assert sgs.num_updates == 0
        assert sgs.dependence == {}
        assert same_matrices(sgs.scalings, before)
        sgs.load_state_dict(good)
        assert sgs.num_updates == 3

    def test_scalings_and_dependence_are_copies(self):
        _, _, sgs = build()
        sgs.scalings["0"].zero_()
        assert torch.equal(sgs.scalings["0"], torch.ones(3, 3))
        sgs.update(images())
        sgs.dependence["0"].zero_()
        assert sgs.dependence["0"][1, 1] == 1

    def test_set_scalings(self):
        _, _, sgs = build()
        sgs.set_scalings(scaling_from_ratios(2, 4))
        torch.testing.assert_close(sgs.scalings["0"], scaling_from_ratios(2, 4).float())
        assert torch.equal(sgs.scalings["3"], torch.ones(1, 3))
        with pytest.raises(ValueError, match="No convolution has a kernel of shape"):
            sgs.set_scalings(torch.ones(9, 9))
        with pytest.raises(KeyError, match=r"5 \(1×1 kernel"):
            sgs.set_scalings({"5": torch.ones(1, 1)})
        with pytest.raises(ValueError, match="finite"):
            sgs.set_scalings({"0": torch.full((3, 3), math.nan)})

    def test_set_scalings_sets_nothing_if_anything_is_wrong(self):
        _, _, sgs = build()
        good = scaling_from_ratios(2, 4)
        for bad in ({"3": torch.full((1, 3), math.nan)}, {"3": torch.ones(3, 3)}, {"5": torch.ones(1, 1)}):
            with pytest.raises((KeyError, ValueError)):
                sgs.set_scalings({"0": good, **bad})  # the bad one last
            assert torch.equal(sgs.scalings["0"], torch.ones(3, 3))
        state = sgs.state_dict()
        state["scalings"] = {"0": good, "3": torch.full((1, 3), -1.0)}
        with pytest.raises(ValueError, match="'3' must be finite and non-negative"):
            sgs.load_state_dict(state)
        assert torch.equal(sgs.scalings["0"], torch.ones(3, 3))

    def test_an_honest_repr(self):
        _, _, sgs = build(k=3, warmup=2, every=7)
        assert repr(sgs) == (
            "SpatialGradientScaling(2 convolutions, 1 skipped, measure='mutual-information', k=3, "
            "apply='gradient', warmup=2, every=7, updates=0, attached to SGD)"
        )
        assert "static" in repr(build(measure=None)[2])


class TestSchedule:
    def test_the_authors_schedule(self):
        _, _, sgs = build(warmup=1, every=5)
        assert [epoch for epoch in range(17) if sgs.due(epoch)] == [1, 5, 10, 15]
        _, _, sgs = build(warmup=0, every=30)
        assert [epoch for epoch in range(61) if sgs.due(epoch)] == [0, 30, 60]

    def test_static_scalings_are_never_due(self):
        _, _, sgs = build(measure=None)
        assert not any(sgs.due(epoch) for epoch in range(10))
        with pytest.raises(RuntimeError, match="static"):
            sgs.update(images())


class TestBadInput:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"k": 0}, "Invalid k: 0"),
            ({"k": -2}, "Invalid k: -2"),
            ({"dependence": "covariance"}, "covariance"),
            ({"warmup": -1}, "warmup=-1"),
            ({"every": 0}, "every=0"),
            ({"every": 1.5}, "every=1.5"),
            ({"every": True}, "every=True"),
            ({"every": math.nan}, "every=nan"),
            ({"warmup": 0.5}, "warmup=0.5"),
            ({"warmup": "1"}, "warmup='1'"),
            ({"apply": "weights"}, "weights"),
            ({"bins": 0}, "bins"),
        ],
    )
    def test_settings(self, settings, message):
        with pytest.raises(ValueError, match=message):
            build(**settings)

    def test_a_model_without_convolutions(self):
        with pytest.raises(ValueError, match="Sequential has no convolution to scale: it has no convolution modules"):
            build(nn.Sequential(nn.Linear(2, 2)))
        with pytest.raises(ValueError, match="1 × 1×1 kernel"):
            build(nn.Sequential(nn.Conv2d(2, 2, 1)))

    def test_a_scripted_model(self):
        model = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()))
        with pytest.raises(ValueError, match="1 × scripted: TorchScript hides it; create the scaling with the model"):
            SpatialGradientScaling(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def test_an_optimizer_of_another_model(self):
        with pytest.raises(ValueError, match="holds none of the model's convolution weights"):
            SpatialGradientScaling(small_net(), torch.optim.SGD(small_net().parameters(), lr=0.1))
        with pytest.raises(TypeError, match="got int"):
            SpatialGradientScaling(small_net(), 3)

    def test_an_optimizer_of_a_part_of_the_model(self):
        model = small_net()
        sgs = SpatialGradientScaling(model, torch.optim.SGD(model[3].parameters(), lr=0.1))
        assert list(sgs.scalings) == ["3"]
        assert sgs.skipped["0"] == "its weight is not in this optimizer"
