"""RepOptimizer: a plain network with multiplied gradients learns what the block with constant scales learns."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from spatialgrad import SpatialGradientScaling
from spatialgrad.models import create_model
from spatialgrad.reparam import (
    LayerScales,
    RepOpt,
    RepOptScaling,
    UnsupportedLayerError,
    explain_scales,
    merge,
    named_blocks,
    reparameterize_,
    repopt_init_,
    repopt_multipliers,
    searched_scales,
)

STEPS = 200


def build():
    """With an identity, without one for its channels or its stride, with a bias, and with groups."""
    torch.manual_seed(0)
    layers = [
        *(nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.Conv2d(6, 6, 3, padding=1, groups=3, bias=False), nn.BatchNorm2d(6), nn.ReLU()),
        nn.Conv2d(6, 6, 3, stride=2, padding=1, bias=False),
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)).double()


@pytest.fixture
def scales():
    """As a search leaves them, some negative."""
    searched = reparameterize_(build(), RepOpt())
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in searched.named_parameters():
            if name.endswith(".scale"):
                parameter.uniform_(-0.5, 1.7, generator=generator)
    return searched_scales(searched)


@pytest.fixture
def pair(scales):
    """A block with constant scales, and the plain network that it merges into."""
    block = reparameterize_(build(), RepOpt(scales=scales, constant=True), preserve=False)
    target = build()
    target.load_state_dict(merge(block).state_dict())
    return block, target


def train_both(block, target, optimizer_of, scales, steps=STEPS):
    """Train on the same batches; the largest difference between the merged block and the target, and what it learnt."""
    start = copy.deepcopy(target)
    optimizers = [optimizer_of(block), optimizer_of(target)]
    scaling = RepOptScaling(target, optimizers[1], scales)
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        x = torch.randn(8, 3, 8, 8, dtype=torch.float64, generator=generator)
        y = torch.randint(0, 5, (8,), generator=generator)
        for model, optimizer in zip((block, target), optimizers, strict=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    scaling.detach()
    apart = difference(merge(block), target)
    assert difference(start, target) > 0.01  # it has learnt something
    return apart


@torch.no_grad()
def difference(first, second):
    return max(float((p - q).abs().max()) for p, q in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 1e-2])
def test_the_target_learns_what_the_block_learns(pair, scales, nesterov, weight_decay):
    def sgd(model):
        settings = {"momentum": 0.9, "nesterov": nesterov, "weight_decay": weight_decay}
        return torch.optim.SGD(model.parameters(), lr=0.05, **settings)

    assert train_both(*pair, sgd, scales) < 1e-10


def test_without_multipliers_it_learns_something_else(pair, scales):
    block, target = pair
    ones = {name: LayerScales(*(s if s is None else s**0 for s in layer)) for name, layer in scales.items()}

    def sgd(model):
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    assert train_both(block, target, sgd, ones) > 1e-3


def test_adam_follows_the_absolute_values_up_to_its_epsilon(pair, scales):
    """Adam divides the gradient's size out, so only the size of a scale is left; epsilon is the difference."""

    def adam(model):
        return torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-12)

    assert (scales["3"].kxk < 0).any()
    assert train_both(*pair, adam, scales, steps=50) < 1e-6


def test_multipliers_by_hand(scales):
    model = build()
    with torch.device("meta"):  # another default device makes no difference
        squares = repopt_multipliers(model, scales)
        firsts = repopt_multipliers(model, scales, power=1)
        repopt_init_(model, scales)
    with_identity = scales["3"]
    for out in range(6):
        for into in range(6):
            s3, s1 = with_identity.kxk[out], with_identity.pointwise[out]
            corner, centre = squares["3"][out, into, 0, 2], squares["3"][out, into, 1, 1]
            torch.testing.assert_close(corner, s3**2)
            torch.testing.assert_close(centre, s3**2 + s1**2 + (out == into))
            torch.testing.assert_close(firsts["3"][out, into, 1, 1], abs(s3) + abs(s1) + (out == into))
    grouped = squares["6"]
    assert grouped.shape == (6, 2, 3, 3)
    diagonal = [(grouped[out, into, 1, 1] - scales["6"].kxk[out] ** 2 - scales["6"].pointwise[out] ** 2).item()
                for out in range(6) for into in range(2)]  # fmt: skip
    torch.testing.assert_close(torch.tensor(diagonal), torch.tensor([1.0, 0, 0, 1] * 3))
    assert scales["0"].identity is None
    assert scales["9"].identity is None
    with pytest.raises(ValueError, match="power must be 1 or 2"):
        repopt_multipliers(model, scales, power=3)


def test_the_summary_agrees_with_the_multipliers(scales):
    multipliers = repopt_multipliers(build(), scales)
    summaries = explain_scales(scales)
    assert summaries.keys() == scales.keys()
    for name, summary in summaries.items():
        corners = multipliers[name][:, 0, 0, 0]
        assert summary.kxk == pytest.approx(float(corners.mean()))
        assert summary.kxk_spread == pytest.approx(float(corners.std(correction=0) / corners.mean()))
        assert summary.identity == (scales[name].identity is not None)
    centre = multipliers["9"][..., 1, 1].mean() / multipliers["9"][..., 0, 0].mean()
    assert summaries["9"].centre_ratio == pytest.approx(float(centre))
    assert "[identity]" in str(summaries["3"])
    assert "[identity]" not in str(summaries["9"])


def test_equal_channels_have_no_spread_and_a_layer_without_scales_no_ratio():
    plain = explain_scales({"0": LayerScales(torch.ones(4), torch.zeros(4), None)})["0"]
    assert (plain.kxk_spread, plain.pointwise_spread, plain.centre_ratio) == (0, 0, 1)
    assert explain_scales({"0": LayerScales(torch.zeros(4), torch.ones(4), None)})["0"].centre_ratio == float("inf")


def test_the_initial_weights_are_those_of_merged_blocks(scales):
    plain = build()
    torch.manual_seed(7)
    target = copy.deepcopy(plain)
    repopt_init_(target, scales)
    torch.manual_seed(7)
    for name, layer in scales.items():
        conv = plain.get_submodule(name)
        pointwise = nn.Conv2d(
            conv.in_channels, conv.out_channels, 1, groups=conv.groups, bias=False, dtype=torch.float64
        )
        expected = conv.weight.detach() * layer.kxk.view(-1, 1, 1, 1)
        expected[:, :, 1:2, 1:2] += pointwise.weight.detach() * layer.pointwise.view(-1, 1, 1, 1)
        if layer.identity is not None:
            width = conv.in_channels // conv.groups
            for channel in range(conv.out_channels):
                expected[channel, channel % width, 1, 1] += layer.identity[channel]
        torch.testing.assert_close(target.get_submodule(name).weight.detach(), expected)


def test_a_fresh_network_gets_fresh_blocks_and_a_trained_one_keeps_its_function():
    fresh = create_model("vgg11-linear", num_classes=10, width=1 / 16).eval()
    x = torch.randn(2, 3, 32, 32)
    before = fresh(x)
    converted = reparameterize_(copy.deepcopy(fresh), RepOpt())
    assert not torch.allclose(converted.eval()(x), before, rtol=1e-3)
    assert len(list(named_blocks(converted))) == 8
    with torch.no_grad():
        fresh.train()(x)
    before = fresh.eval()(x)
    kept = reparameterize_(copy.deepcopy(fresh), RepOpt())
    torch.testing.assert_close(kept.eval()(x), before, rtol=1e-3, atol=1e-3)


def test_the_block_merges_and_its_scales_train_unless_they_are_constant(scales):
    searched = reparameterize_(build(), RepOpt())
    trained = {name for name, p in searched.named_parameters() if p.requires_grad}
    assert {"3.branches.kxk.scale", "3.branches.1x1.scale", "3.branches.identity.scale"} <= trained
    constant = reparameterize_(build(), RepOpt(scales=scales, constant=True), preserve=False)
    names = {name for name, _ in constant.named_parameters()}
    assert "3.branches.kxk.scale" not in names
    assert "3.branches.identity.scale" in names
    assert torch.equal(constant.state_dict()["3.branches.kxk.scale"], scales["3"].kxk)
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    for model in (searched, constant):
        torch.testing.assert_close(merge(model).eval()(x), model.eval()(x), atol=1e-10, rtol=0)


def test_scales_of_another_network_are_refused(scales):
    model = build()
    with pytest.raises(KeyError, match="no convolution nowhere"):
        repopt_init_(model, {"nowhere": scales["0"]})
    with pytest.raises(UnsupportedLayerError, match="'0' must be 6 finite numbers"):
        repopt_multipliers(model, {"0": LayerScales(torch.ones(5), torch.ones(6), None)})
    with pytest.raises(UnsupportedLayerError, match="has an identity branch"):
        repopt_multipliers(model, {"3": scales["0"]})
    with pytest.raises(UnsupportedLayerError, match="no scales for '0'"):
        reparameterize_(build(), RepOpt(scales={}))
    with pytest.raises(ValueError, match="no blocks of RepOpt"):
        searched_scales(model)
    with pytest.raises(ValueError, match="positive"):
        RepOpt(initial=0)


def test_two_scalings_of_the_same_weights_are_refused(scales):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    SpatialGradientScaling(model, optimizer)
    with pytest.raises(ValueError, match="already scales"):
        RepOptScaling(model, optimizer, scales)


def test_a_state_of_other_scales_is_refused(scales):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaling = RepOptScaling(model, optimizer, scales)
    state = copy.deepcopy(scaling.state_dict())
    scaling.load_state_dict(state)
    state["scales"]["3"][1][0] += 1
    with pytest.raises(ValueError, match="other scales for '3'"):
        scaling.load_state_dict(state)
    scaling.detach()
    assert "detached" in repr(scaling)
