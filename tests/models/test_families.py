"""Details of single families that the tests over the whole registry cannot see."""

import pytest
import torch
from torch import nn

from spatialgrad.models import create_model, list_models
from spatialgrad.models.preactresnet import PreActBlock
from spatialgrad.models.pyramidnet import PyramidBlock
from spatialgrad.models.seresnet import SEBasicBlock, SqueezeExcitation
from spatialgrad.models.shufflenet import ShuffleUnit
from spatialgrad.models.xception import XceptionBlock


@pytest.mark.parametrize("name", ["vgg11", "vgg19", "vgg16-slim"])
def test_vgg_takes_images_smaller_than_its_five_poolings(name):
    model = create_model(name, num_classes=10, width=0.125, in_channels=1).eval()
    with torch.no_grad():
        assert model(torch.randn(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize(("name", "layers"), [("vgg11", 11), ("vgg13", 13), ("vgg16", 16), ("vgg19", 19)])
def test_vgg_has_as_many_weighted_layers_as_its_name_says(name, layers):
    with torch.device("meta"):
        model = create_model(name)
    assert sum(isinstance(module, (nn.Conv2d, nn.Linear)) for module in model.modules()) == layers
    assert [m.out_features for m in model.classifier if isinstance(m, nn.Linear)] == [4096, 4096, 100]


@pytest.mark.parametrize(
    ("name", "convolutions", "hidden"),
    [("vgg11-slim", 8, 2), ("vgg13-slim", 10, 1), ("vgg16-slim", 13, 1), ("vgg19-slim", 16, 1)],
)
def test_slim_vgg_has_hidden_layers_of_512_and_neither_bias_nor_dropout(name, convolutions, hidden):
    with torch.device("meta"):
        model = create_model(name, num_classes=10)
    linear = [module for module in model.classifier if isinstance(module, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(512, 512)] * hidden + [(512, 10)]
    assert [m.bias for m in model.modules() if isinstance(m, nn.Conv2d)] == [None] * convolutions
    assert not any(isinstance(module, nn.Dropout) for module in model.modules())


def test_vgg_dropout_is_an_option():
    def probabilities(**options):
        model = create_model("vgg11", width=0.125, **options)
        return [module.p for module in model.modules() if isinstance(module, nn.Dropout)]

    assert probabilities() == [0.5, 0.5]
    assert probabilities(dropout=0.2) == [0.2, 0.2]
    assert probabilities(dropout=0.0) == []


def test_preactivation_shortcut_is_the_untouched_input():
    block = PreActBlock(4, 4)
    nn.init.zeros_(block.conv2.weight)
    nn.init.zeros_(block.conv2.bias)
    x = torch.randn(2, 4, 8, 8)
    assert torch.equal(block(x), x)


@pytest.mark.parametrize(("final_norm", "extra"), [(False, 0), (True, 1024)])
def test_preactivation_network_may_end_in_batch_normalization_as_the_paper_has_it(final_norm, extra):
    with torch.device("meta"):
        model = create_model("preactresnet18", final_norm=final_norm)
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_222_244 + extra

    model = create_model("preactresnet18", width=0.125, final_norm=final_norm)
    seen = []
    model.avgpool.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    for scale in (1.0, 100.0):
        model.layer4.register_forward_hook(lambda _, __, output, scale=scale: output * scale)
        with torch.no_grad():
            model(torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    # Only batch normalization takes the factor out again.
    assert torch.allclose(seen[0], seen[1], atol=1e-3) == final_norm


def test_excitation_weighs_channels_by_the_means_of_all():
    block = SqueezeExcitation(64)
    x = torch.rand(2, 64, 8, 8)
    weights = block(x) / x
    assert ((weights > 0) & (weights < 1)).all()
    torch.testing.assert_close(weights, weights[:, :, :1, :1].expand_as(weights))
    first, _, second, _ = block.excitation
    hidden = (x.mean((2, 3)) @ first.weight.T + first.bias).clamp(min=0)
    torch.testing.assert_close(weights[:, :, 0, 0], (hidden @ second.weight.T + second.bias).sigmoid())


def test_excitation_of_a_narrow_block_keeps_four_hidden_numbers():
    assert SEBasicBlock(8, 8).se.excitation[0].out_features == 4
    assert SEBasicBlock(8, 512).se.excitation[0].out_features == 32


def test_the_residual_is_rectified_before_it_is_squeezed():
    block, x = SEBasicBlock(8, 8).eval(), torch.randn(2, 8, 6, 6)
    residual = block.bn2(block.conv2(block.bn1(block.conv1(x)).relu())).relu()
    torch.testing.assert_close(block(x), (block.se(residual) + x).relu())


def test_shuffle_unit_mixes_its_groups():
    # Without the shuffle, an output would depend on the inputs of its own group only.
    unit = ShuffleUnit(36, 36, stride=1, groups=3).eval()
    x = torch.randn(1, 36, 4, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(unit.residual(x)[:, :12].sum(), x)
    assert (gradient.abs().amax((0, 2, 3)).reshape(3, 12).amax(1) > 0).all()


@pytest.mark.parametrize("groups", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("width", [0.125, 1.0])
def test_shufflenet_with_every_number_of_groups_of_the_paper(groups, width):
    with torch.device("meta"):
        model = create_model("shufflenet", groups=groups, width=width)
        assert model(torch.empty(2, 3, 32, 32)).shape == (2, 100)


@pytest.mark.parametrize("alpha", [48, 84, 270])
def test_pyramidnet_widens_linearly_to_16_plus_alpha(alpha):
    with torch.device("meta"):
        model = create_model(f"pyramidnet110-a{alpha}")
    channels = [block.residual[-1].num_features for block in model.blocks]
    assert len(channels) == 54
    assert channels[-1] == 16 + alpha
    for index, count in enumerate(channels, start=1):
        assert abs(count - (16 + alpha * index / 54)) <= 0.5 + 1e-9
    assert sum(isinstance(m, (nn.Conv2d, nn.Linear)) for m in model.modules()) == 110


def test_pyramid_block_pads_its_shortcut_with_zero_channels():
    block = PyramidBlock(3, 5, stride=2)
    nn.init.zeros_(block.residual[-1].weight)
    x = torch.randn(2, 3, 8, 8)
    y = block(x)
    torch.testing.assert_close(y[:, :3], nn.functional.avg_pool2d(x, 2))
    assert not y[:, 3:].any()


def test_xception_shortcut_is_the_input_before_the_rectifier():
    block = XceptionBlock((4, 4, 4))
    nn.init.zeros_(block.residual[-1].weight)
    x = torch.randn(2, 4, 8, 8)
    before = x.clone()
    torch.testing.assert_close(block(x), before)
    assert torch.equal(x, before)


def test_convnext_is_timms():
    timm = pytest.importorskip("timm", exc_type=ImportError)
    torch.manual_seed(0)
    theirs = timm.create_model("convnext_atto", num_classes=10).eval()
    ours = create_model("convnext-atto-imagenet", num_classes=10).eval()
    names = [name for name, _ in ours.named_parameters()]
    for name, mine, other in zip(names, ours.parameters(), theirs.parameters(), strict=True):
        # timm's linear layers are 1×1 convolutions here. A layer scale of 1e-6 would hide what the blocks do.
        value = other.detach().view_as(mine) if other.ndim == mine.ndim + 2 else other.detach()
        assert value.shape == mine.shape, name
        if name.endswith(".scale"):
            nn.init.ones_(other)
        mine.data.copy_(value)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), rtol=1e-4, atol=1e-4)


def test_convnext_starts_as_its_paper_says():
    torch.manual_seed(0)
    model = create_model("convnext-atto", width=0.5)
    weights = torch.cat([m.weight.flatten() for m in model.modules() if isinstance(m, nn.Linear)])
    assert weights.std().item() == pytest.approx(0.02, rel=0.02)
    assert all(not m.bias.any() for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear))
    scales = [value for name, value in model.named_parameters() if name.endswith(".scale")]
    assert len(scales) == 12
    assert all(torch.equal(scale, torch.full_like(scale, 1e-6)) for scale in scales)


def test_mobilenetv2_leaves_the_inputs_of_its_blocks_alone():
    model = create_model("mobilenetv2", width=0.125).eval()
    block = next(block for block in model.blocks if block.has_shortcut)
    x = torch.randn(2, block.residual[0].in_channels, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(block(x) - block.residual(x), x)


@pytest.mark.parametrize("name", list_models("resnet*") + list_models("pyramidnet*"))
def test_networks_after_their_papers_have_no_bias_before_batch_normalization(name):
    with torch.device("meta"):
        model = create_model(name)
    assert all(module.bias is None for module in model.modules() if isinstance(module, nn.Conv2d))
