"""Which convolutions are scaled and which are not; and the buffer of G, which follows the weight."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, weight_norm

from spatialgrad import Live, NoEffectWarning, SpatialGradientScaling, scaling_from_ratios
from spatialgrad.sgs.layers import ScaledLayer
from spatialgrad.sgs.selection import select_convolutions
from support.scaling import build, images, small_net, train


class Zoo(nn.Module):
    """One convolution of each kind that matters."""

    def __init__(self):
        super().__init__()
        self.plain = nn.Conv2d(3, 4, 3)
        self.row = nn.Conv2d(4, 4, (1, 3))
        self.line = nn.Conv1d(4, 4, 3)
        self.volume = nn.Conv3d(4, 4, 3)
        self.pointwise = nn.Conv2d(4, 4, 1)
        self.up = nn.ConvTranspose2d(4, 4, 3)
        self.frozen = nn.Conv2d(4, 4, 3).requires_grad_(False)
        self.spectral = parametrizations.spectral_norm(nn.Conv2d(4, 4, 3))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            self.normed = weight_norm(nn.Conv2d(3, 4, 3))
        self.lazy = nn.LazyConv2d(4, 3)
        self.complex = nn.Conv2d(3, 4, 3, dtype=torch.complex64)
        self.twin = nn.Conv2d(3, 4, 3)
        self.twin.weight = self.plain.weight
        self.again = self.row
        # The model may convolve with these by itself.
        self.kernel = nn.Parameter(torch.rand(4, 4, 3, 3))
        self.point = nn.Parameter(torch.rand(4, 4, 1, 1))
        self.bias = nn.Parameter(torch.rand(4, 1, 1))
        self.positions = nn.Parameter(torch.rand(1, 196, 64))
        self.register_buffer("blur", torch.ones(4, 1, 5, 5))


class TestSelection:
    def test_every_convolution_is_chosen_or_has_a_reason(self):
        chosen, skipped = select_convolutions(Zoo())
        assert list(chosen) == ["plain", "row", "line", "volume"]
        assert len(chosen["plain"]) == 2  # one weight, two modules
        reasons = {
            "pointwise": "1×1",
            "up": "transposed",
            "frozen": "frozen",
            "spectral": "parametrized",
            "normed": "parametrized",
            "lazy": "not initialized",
            "complex": "complex",
            "twin": "shares its weight with 'plain'",
            "kernel": r"not in a convolution module, such as nn.Conv2d: if the model passes it to F.conv2d",
        }
        assert set(skipped) == set(reasons)
        for name, reason in reasons.items():
            assert reason in skipped[name]

    def test_include_and_exclude_by_name_and_module(self):
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 5), nn.Conv2d(4, 4, 3, groups=4))
        predicates = {"include": lambda name, _: name != "0", "exclude": lambda _, module: module.groups > 1}
        chosen, skipped = select_convolutions(model, **predicates)
        assert list(chosen) == ["1"]
        assert skipped == {"0": "not included", "2": "excluded"}
        with pytest.raises(TypeError, match="Invalid include: 'conv'"):
            select_convolutions(model, include="conv")

    @pytest.mark.parametrize(
        ("model", "message"),
        [
            (nn.Sequential(nn.Linear(2, 2)), "Sequential has no convolution to scale: it has no convolution modules"),
            (nn.Sequential(nn.Conv2d(2, 2, 1)), "1 × 1×1 kernel"),
            (nn.ParameterList([torch.rand(4, 3, 3, 3)]), "1 × not in a convolution module"),
            (torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3))), "1 × scripted: TorchScript hides it; create"),
        ],
    )
    def test_a_model_without_convolutions(self, model, message):
        with pytest.raises(ValueError, match=message):
            SpatialGradientScaling(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def test_an_optimizer_of_a_part_of_the_model_or_of_another_one(self):
        model = small_net()
        sgs = SpatialGradientScaling(model, torch.optim.SGD(model[3].parameters(), lr=0.1))
        assert list(sgs.scalings) == ["3"]
        assert sgs.skipped["0"] == "its weight is not in this optimizer"
        with pytest.raises(ValueError, match="holds none of the model's convolution weights"):
            SpatialGradientScaling(model, torch.optim.SGD(small_net().parameters(), lr=0.1))


def unfrozen(model, optimizer):
    model[0].requires_grad_(True)


def added(model, optimizer):
    optimizer.add_param_group({"params": model[3].parameters()})


def replaced(model, optimizer):
    model[2] = nn.Conv2d(8, 8, 3, padding=1)
    optimizer.add_param_group({"params": model[2].parameters()})


CHANGES = {"unfrozen": (unfrozen, "0"), "added": (added, "3"), "replaced": (replaced, "2")}


class TestAdoption:
    """Convolutions that become trainable later are scaled from the next update on."""

    def build(self, **settings):
        """Layer 0 is frozen, layer 3 is in no optimizer, layer 2 is no convolution, and the last one is scaled."""
        model = small_net()[:6].append(nn.Conv2d(8, 8, (1, 3))).extend(small_net()[6:])
        model[0].requires_grad_(False)
        trained = [*model[0].parameters(), *model[6].parameters(), *model[9].parameters()]
        optimizer = torch.optim.SGD(trained, lr=0.1)
        return model, optimizer, SpatialGradientScaling(model, optimizer, **settings)

    @pytest.mark.parametrize("live", [False, True])
    @pytest.mark.parametrize("change", CHANGES)
    def test_when_an_update_begins(self, change, live):
        apply_, name = CHANGES[change]
        model, optimizer, sgs = self.build(live=Live(at=(1,), every=50, batches=1) if live else False)
        assert list(sgs.scalings) == ["6"]
        apply_(model, optimizer)
        train(model, optimizer, steps=3)
        if not live:
            sgs.update(images())
        assert set(sgs.scalings) == {name, "6"}
        assert not torch.equal(sgs.scalings[name], torch.ones_like(sgs.scalings[name]))
        assert name not in sgs.skipped
        before = copy.deepcopy(model)
        optimizer.zero_grad()
        model(images()).sum().backward()
        gradient = model[int(name)].weight.grad.clone()
        optimizer.step()
        change = before[int(name)].weight - model[int(name)].weight
        torch.testing.assert_close(change, 0.1 * gradient * sgs.scalings[name], atol=1e-6, rtol=1e-3)

    @pytest.mark.parametrize("change", ["unfrozen", "added"])
    def test_static_scalings_have_none_for_them_which_is_said_once(self, change):
        apply_, name = CHANGES[change]
        model, optimizer, sgs = self.build(measure=None, scalings=torch.tensor([[0.5, 2.0, 0.5]]))
        train(model, optimizer)
        apply_(model, optimizer)
        with pytest.warns(NoEffectWarning, match=f"{name} became trainable and have no scaling yet; use set_scalings"):
            train(model, optimizer, steps=1)
        train(model, optimizer)  # warnings are errors here
        sgs.set_scalings({name: torch.ones_like(sgs.scalings[name])})

    def test_a_choice_of_the_user_stays(self):
        model, optimizer, sgs = build(include=lambda name, module: name == "0")
        replaced(model, optimizer)
        sgs.update(images())
        assert list(sgs.scalings) == ["0"]

    def test_a_state_with_scalings_of_layers_to_come(self):
        model, optimizer, sgs = self.build()
        unfrozen(model, optimizer)
        sgs.update(images())
        fresh_model, fresh_optimizer, fresh = self.build()
        fresh.load_state_dict(sgs.state_dict())
        assert list(fresh.scalings) == ["6"]
        unfrozen(fresh_model, fresh_optimizer)
        fresh.attach(fresh_optimizer)
        assert torch.equal(fresh.scalings["0"], sgs.scalings["0"])

    def test_layers_that_are_frozen_for_a_while_stay(self):
        model, optimizer, sgs = build(scalings=scaling_from_ratios(2, 2), measure=None)
        model[0].requires_grad_(False)
        sgs.attach(optimizer)
        copy.deepcopy((model, optimizer, sgs))
        train(model, optimizer)
        assert list(sgs.scalings) == ["0", "3"]

    @pytest.mark.parametrize(
        "change",
        [
            lambda conv: prune.l1_unstructured(conv, "weight", amount=0.5),
            nn.utils.parametrizations.weight_norm,
        ],
    )
    def test_a_weight_that_is_parametrized_later_is_reported_once(self, change):
        model, optimizer, _ = build()
        change(model[0])
        with pytest.warns(NoEffectWarning, match="0 were parametrized or pruned"):
            train(model, optimizer, steps=1)
        train(model, optimizer)  # warnings are errors here


class TestBuffer:
    """G repeated over the weight, or over one of its filters."""

    G = torch.tensor([[0.5, 2.0, 0.5]])

    @pytest.fixture
    def layer(self):
        layer = ScaledLayer("conv", [nn.Conv2d(3, 4, (1, 3))])
        assert torch.equal(layer.scaling, torch.ones(1, 3))
        layer.set_scaling(self.G)
        return layer

    def test_one_value_per_position_for_every_input_channel(self, layer):
        weight = layer.weight.detach()
        assert torch.equal(weight * layer.buffer(weight), weight * self.G)
        place = layer.buffer(weight).data_ptr()
        layer.set_scaling(2 * self.G)  # captured graphs see the new values
        assert layer.buffer(weight).data_ptr() == place
        assert torch.equal(weight * layer.buffer(weight), weight * 2 * self.G)

    def test_it_follows_layout_shape_and_device(self, layer):
        conv = layer.modules[0].to(memory_format=torch.channels_last)
        layer.buffer(conv.weight)
        assert layer.buffer(conv.weight).stride() == conv.weight[0].stride()
        conv.weight = nn.Parameter(conv.weight[:, :2].contiguous())  # pruned channels
        assert torch.equal(layer.buffer(conv.weight), self.G.expand(2, 1, 3))
        conv.to("meta")
        assert layer.buffer(layer.weight).device.type == "meta"
        assert layer.buffer(layer.weight).shape == layer.weight.shape

    def test_updates_and_states_are_written_into_the_same_memory(self):
        model, optimizer, sgs = build()
        train(model, optimizer, steps=1)
        layers = sgs._layers.values()
        before = [layer.buffer(layer.weight).data_ptr() for layer in layers]
        sgs.update(images())
        sgs.load_state_dict(sgs.state_dict())
        assert [layer.buffer(layer.weight).data_ptr() for layer in layers] == before
