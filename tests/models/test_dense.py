"""Dense networks, PSPNet and the pose ResNet: sizes and places of their maps, scaling, branches, backbone weights."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from spatialgrad import SpatialGradientScaling, normalized_mutual_information
from spatialgrad.models import EncoderWeightsError, create_model, list_models, load_encoder_
from spatialgrad.models.pspnet import PyramidPooling
from spatialgrad.models.resnet_encoder import ResNetEncoder
from spatialgrad.reparam import ACB, DBB, RepVGG, merge, reparameterize_
from support.models import settled

PSPNETS, POSE = list_models(task="segmentation"), list_models(task="pose")


def small(name="pspnet18", **options):
    return create_model(name, **{"num_classes": 5, "width": 0.125, **options})


def smooth(side=97):
    """Images whose neighbouring pixels resemble each other: noise has nothing to measure."""
    return F.avg_pool2d(torch.randn(4, 3, side, side), 5, stride=1, padding=2)


def in_training(model, batch):
    """All of the outputs that a training uses."""
    return model(batch[0], auxiliary=True) if hasattr(model, "auxiliary") else model(batch[0])


# Maps


@pytest.mark.parametrize("name", PSPNETS)
def test_pspnet_gives_two_maps_of_logits_in_training_and_one_in_evaluation(name):
    model, images = small(name), torch.randn(2, 3, 65, 97)
    logits, auxiliary = model(images)
    assert logits.shape == auxiliary.shape == (2, 5, 65, 97)
    model.eval()
    assert model(images).shape == (2, 5, 65, 97)
    again, auxiliary = model(images, auxiliary=True)
    assert torch.equal(again, model(images))
    assert auxiliary.shape == (2, 5, 65, 97)


@pytest.mark.parametrize("name", POSE)
def test_the_maps_of_joints_are_a_quarter_of_the_image(name):
    model = small(name, in_channels=1).eval()
    with torch.no_grad():
        for height, width in ((64, 64), (96, 64)):
            assert model(torch.randn(2, 1, height, width)).shape == (2, 5, height // 4, width // 4)


@pytest.mark.parametrize("size", [(64, 64), (65, 65), (60, 83), (9, 8), (180, 240)])
def test_any_size_comes_out_as_it_went_in(size):
    model = settled(small(in_channels=1), torch.randn(2, 1, 64, 64))
    logits = model(torch.randn(1, 1, *size))
    assert logits.shape == (1, 5, *size)
    assert logits.isfinite().all()


@pytest.mark.parametrize("size", [(65, 73), (60, 70)])
def test_every_eighth_pixel_has_the_logits_of_the_map_and_others_are_interpolated(size):
    model, images = settled(small(), torch.randn(2, 3, 65, 65)), torch.randn(1, 3, *size)
    with torch.no_grad():
        logits, map_of_logits = model(images), model.head(model.pyramid(model.backbone(images)[-1]))
    torch.testing.assert_close(logits[..., ::8, ::8], map_of_logits)
    if size == (65, 73):  # 8n + 1
        expected = F.interpolate(map_of_logits, size=size, mode="bilinear", align_corners=True)
        torch.testing.assert_close(logits, expected)


def test_the_pyramid_holds_the_map_and_the_means_of_its_parts():
    pyramid, x = PyramidPooling(8).eval(), torch.randn(2, 8, 12, 12)
    found = pyramid(x)
    assert found.shape == (2, 16, 12, 12)
    assert torch.equal(found[:, :8], x)
    convolution = pyramid.levels[0][1].weight[:, :, 0, 0]
    mean = x.mean((2, 3)) @ convolution.T / (1 + 1e-5) ** 0.5
    torch.testing.assert_close(found[:, 8:10], mean.relu()[:, :, None, None].expand(-1, -1, 12, 12))


def test_dropout_is_an_option_of_its_own():
    for options, expected in (({}, 0.1), ({"dropout": 0.0}, 0.0)):
        assert {m.p for m in small(**options).modules() if isinstance(m, nn.Dropout2d)} == {expected}


# Backbones


@pytest.mark.parametrize(("layers", "channels"), [(18, (8, 16, 32, 64)), (50, (32, 64, 128, 256))])
@pytest.mark.parametrize("dilated", [False, True])
def test_the_maps_of_the_four_stages(layers, channels, dilated):
    backbone = ResNetEncoder(layers, width=0.125, in_channels=2, dilated=dilated)
    maps = backbone(torch.randn(2, 2, 64, 64))
    assert backbone.channels == channels == tuple(m.shape[1] for m in maps)
    assert [m.shape[-1] for m in maps] == ([16, 8, 8, 8] if dilated else [16, 8, 4, 2])
    assert not any(name.startswith(("fc", "avgpool")) for name, _ in backbone.named_modules())
    stages = (backbone.layer1, backbone.layer2, backbone.layer3, backbone.layer4)
    found = [{m.dilation[0] for m in stage.modules() if isinstance(m, nn.Conv2d)} - {1} for stage in stages]
    assert found == ([set(), set(), {2}, {2, 4}] if dilated else [set()] * 4)


@pytest.mark.parametrize(("name", "stride"), [("pspnet18", 4), ("poseresnet18", 1)])
def test_a_backbone_computes_what_the_classifier_was_trained_for(name, stride):
    """At the pixels that striding keeps: no weight looks at other neighbours than in the classification network."""
    classifier, model = small("resnet18-imagenet").eval(), small(name).eval()
    load_encoder_(model, classifier.state_dict(), source="a test")
    images = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        expected, found = classifier.forward_stages(images)[-1], model.backbone(images)[-1]
    torch.testing.assert_close(found[..., ::stride, ::stride], expected, rtol=1e-4, atol=1e-4)


def classifier_state(name="resnet18-imagenet", prefix="", **options):
    return {f"{prefix}{name}": value for name, value in small(name, **options).state_dict().items()}


def torchvision_state(layers):
    models = pytest.importorskip("torchvision.models", exc_type=ImportError)
    return getattr(models, f"resnet{layers}")(weights=None).state_dict()


def without(part, state):
    return {name: value for name, value in state.items() if not name.endswith(part)}


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (classifier_state, {}),
        (lambda: classifier_state(prefix="module."), {}),
        (lambda: classifier_state(prefix="_orig_mod."), {}),
        (lambda: classifier_state(prefix="module._orig_mod."), {}),
        (lambda: classifier_state("pspnet18", num_classes=3), {}),
        # Checkpoints from before these counters existed.
        (lambda: without("num_batches_tracked", classifier_state()), {}),
        (lambda: torchvision_state(18), {"width": 1.0}),
        (lambda: torchvision_state(50), {"name": "pspnet50", "width": 1.0}),
    ],
)
def test_weights_from_elsewhere(build, options):
    state, model = build(), small(**options)
    load_encoder_(model, state, source="somewhere")
    loaded = model.backbone.state_dict()
    plain = {name.removeprefix("module.").removeprefix("_orig_mod."): value for name, value in state.items()}
    dense = any(name.startswith("backbone.") for name in plain)
    own = {name: plain.get(f"backbone.{name}" if dense else name) for name in loaded}
    assert [name for name, value in own.items() if value is None and not name.endswith("num_batches_tracked")] == []
    assert all(value is None or torch.equal(loaded[name], value) for name, value in own.items())


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda: classifier_state(width=0.25), r"'conv1.weight' is 16×3×7×7 in here.pth, but 8×3×7×7.*depth and width"),
        (lambda: classifier_state("resnet18"), r"'conv1.weight' is 8×3×3×3 in here.pth, but 8×3×7×7.*7×7 stem"),
        (lambda: classifier_state("resnet34-imagenet"), r"here.pth has a weight 'layer1.2.conv1.weight' that"),
        (lambda: classifier_state("vgg11"), r"here.pth has no weight 'conv1.weight'"),
        (
            lambda: without("layer3.0.bn2.running_var", classifier_state()),
            r"here.pth has no weight 'layer3.0.bn2.running_var' \(merging branches",
        ),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_loaded(state, message):
    model = small()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(EncoderWeightsError, match=message):
        load_encoder_(model, state(), source="here.pth")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_network_without_a_backbone():
    with pytest.raises(EncoderWeightsError, match="VGG has no backbone"):
        load_encoder_(small("vgg11"), {}, source="here.pth")


# Training


@pytest.mark.parametrize("name", [*PSPNETS, "poseresnet18"])
def test_gradient_reaches_every_parameter(name):
    model, images = small(name), torch.randn(2, 3, 64, 64)
    outputs = in_training(settled(model, images), (images,))
    sum(output.square().mean() for output in (outputs if isinstance(outputs, tuple) else (outputs,))).backward()
    assert [path for path, parameter in model.named_parameters() if parameter.grad is None] == []


def test_scaling_measures_every_spatial_kernel_at_its_dilation_and_leaves_1x1_alone():
    images = smooth()
    model = settled(small(), images)
    sgs = SpatialGradientScaling(model, torch.optim.SGD(model.parameters(), lr=0.1), k=5)
    spatial = {
        path for path, module in model.named_modules() if isinstance(module, nn.Conv2d) and max(module.kernel_size) > 1
    }
    assert sgs.scalings.keys() == spatial
    assert {"backbone.conv1", "backbone.layer4.1.conv2", "head.0", "auxiliary.0"} <= spatial
    sgs.update([(images, None)], batches=1, forward=in_training)
    for path, G in sgs.scalings.items():
        assert G.mean().item() == pytest.approx(1, abs=1e-5), path
        assert (G != 1).any(), path

    layer, seen = model.get_submodule("backbone.layer4.1.conv2"), []
    assert layer.dilation == (4, 4)
    layer.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
    with torch.no_grad():
        model(images)

    def scaling(dilation):
        S = normalized_mutual_information(seen[0], (3, 3), padding=dilation, dilation=dilation)
        G = (5 * S / (4 * S + 1)).nanmean(0)
        return G / G.mean()

    torch.testing.assert_close(sgs.scalings["backbone.layer4.1.conv2"], scaling(4).float(), rtol=1e-4, atol=1e-4)
    assert (sgs.scalings["backbone.layer4.1.conv2"] - scaling(1)).abs().max() > 0.01


def test_transposed_convolutions_are_left_alone_and_listed():
    model = small("poseresnet18")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sgs = SpatialGradientScaling(model, optimizer)
    transposed = [name for name, module in model.named_modules() if isinstance(module, nn.ConvTranspose2d)]
    assert transposed == ["upsample.0", "upsample.3", "upsample.6"]
    assert {sgs.skipped[name] for name in transposed} == {"transposed convolution"}
    assert all(name.startswith("backbone.") for name in sgs.scalings)
    # What they learn is what they learn without scaling.
    sgs.set_scalings(torch.tensor([[0.5, 1, 0.5], [1, 3, 1], [0.5, 1, 0.5]]))
    before = {name: model.get_submodule(name).weight.detach().clone() for name in transposed}
    model(torch.randn(2, 3, 64, 64)).square().sum().backward()
    gradients = {name: model.get_submodule(name).weight.grad.clone() for name in transposed}
    optimizer.step()
    for name in transposed:
        torch.testing.assert_close(model.get_submodule(name).weight, before[name] - 0.1 * gradients[name])


@pytest.mark.parametrize("name", ["pspnet18", "poseresnet18"])
@pytest.mark.parametrize("method", [ACB(), DBB(), RepVGG()])
def test_branches_go_in_and_come_out(method, name):
    images = torch.randn(2, 3, 64, 64)
    model = settled(reparameterize_(small(name), method), images)
    with torch.no_grad():
        expected, merged = model(images), merge(model)
        torch.testing.assert_close(merged(images), expected, rtol=1e-3, atol=1e-3)
    transposed = sum(isinstance(module, nn.ConvTranspose2d) for module in merged.modules())
    assert transposed == (3 if name == "poseresnet18" else 0)
