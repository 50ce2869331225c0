"""PSPNet: any image size, the place of every pixel, dilation, scaling, branches."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from spatialgrad import SpatialGradientScaling, normalized_mutual_information
from spatialgrad.models import PSPNet, create_model, list_models
from spatialgrad.models.pspnet import PyramidPooling
from spatialgrad.reparam import ACB, DBB, RepVGG, merge, reparameterize_
from support.models import settled

NAMES = list_models(task="segmentation")


def small(name="pspnet18", **options):
    return create_model(name, **{"num_classes": 5, "width": 0.125, **options})


@pytest.mark.parametrize("name", NAMES)
def test_training_gives_two_maps_of_logits_and_evaluation_one(name):
    model, images = small(name), torch.randn(2, 3, 65, 97)
    logits, auxiliary = model(images)
    assert logits.shape == auxiliary.shape == (2, 5, 65, 97)
    model.eval()
    assert model(images).shape == (2, 5, 65, 97)
    again, auxiliary = model(images, auxiliary=True)
    assert torch.equal(again, model(images))
    assert auxiliary.shape == (2, 5, 65, 97)


@pytest.mark.parametrize("size", [(64, 64), (65, 65), (60, 83), (9, 8), (180, 240)])
def test_any_size_comes_out_as_it_went_in(size):
    model = settled(small(in_channels=1), torch.randn(2, 1, 64, 64))
    logits = model(torch.randn(1, 1, *size))
    assert logits.shape == (1, 5, *size)
    assert logits.isfinite().all()


def test_sizes_of_8n_plus_1_are_interpolated_with_aligned_corners():
    model, images = settled(small(), torch.randn(2, 3, 65, 65)), torch.randn(1, 3, 65, 73)
    with torch.no_grad():
        *_, last = model.backbone(images)
        map_of_logits = model.head(model.pyramid(last))
        assert map_of_logits.shape[-2:] == (9, 10)
        expected = F.interpolate(map_of_logits, size=(65, 73), mode="bilinear", align_corners=True)
        torch.testing.assert_close(model(images), expected)


def test_every_eighth_pixel_has_the_logits_of_the_map_at_any_size():
    model, images = settled(small(), torch.randn(2, 3, 64, 64)), torch.randn(1, 3, 60, 70)
    with torch.no_grad():
        map_of_logits = model.head(model.pyramid(model.backbone(images)[-1]))
        torch.testing.assert_close(model(images)[..., ::8, ::8], map_of_logits)


@pytest.mark.parametrize("name", NAMES)
def test_the_last_two_stages_are_dilated_and_keep_an_eighth(name):
    model = small(name)
    maps = model.backbone(torch.randn(2, 3, 64, 96))
    assert [tuple(m.shape[-2:]) for m in maps] == [(16, 24), (8, 12), (8, 12), (8, 12)]
    dilations = {
        stage: {m.dilation[0] for m in getattr(model.backbone, stage).modules() if isinstance(m, nn.Conv2d)} - {1}
        for stage in ("layer1", "layer2", "layer3", "layer4")
    }
    assert dilations["layer1"] == dilations["layer2"] == set()
    assert dilations["layer3"] == {2}
    assert dilations["layer4"] == {2, 4}


def test_a_dilated_backbone_computes_what_the_network_was_trained_for():
    """At the pixels that striding keeps: no weight looks at other neighbours than in the classification network."""
    classifier = create_model("resnet18-imagenet", width=0.125, num_classes=3).eval()
    model = small().eval()
    state = {name: value for name, value in classifier.state_dict().items() if not name.startswith("fc.")}
    model.backbone.load_state_dict(state)
    images = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        expected, found = classifier.forward_stages(images)[-1], model.backbone(images)[-1]
    torch.testing.assert_close(found[..., ::4, ::4], expected, rtol=1e-4, atol=1e-4)


def test_the_pyramid_holds_the_map_and_the_means_of_its_parts():
    torch.manual_seed(0)
    pyramid, x = PyramidPooling(8).eval(), torch.randn(2, 8, 12, 12)
    found = pyramid(x)
    assert found.shape == (2, 16, 12, 12)
    assert torch.equal(found[:, :8], x)
    convolution = pyramid.levels[0][1].weight[:, :, 0, 0]
    mean = x.mean((2, 3)) @ convolution.T / (1 + 1e-5) ** 0.5
    torch.testing.assert_close(found[:, 8:10], mean.relu()[:, :, None, None].expand(-1, -1, 12, 12))


@pytest.mark.parametrize("name", NAMES)
def test_gradient_reaches_every_parameter(name):
    model, images = small(name), torch.randn(2, 3, 65, 65)
    settled(model, images)
    logits, auxiliary = model(images, auxiliary=True)
    (F.cross_entropy(logits, torch.ones(2, 65, 65).long()) + auxiliary.square().mean()).backward()
    lonely = [path for path, parameter in model.named_parameters() if parameter.grad is None]
    assert not lonely


def test_dropout_is_an_option_of_its_own():
    assert {m.p for m in small(dropout=0.0).modules() if isinstance(m, nn.Dropout2d)} == {0.0}
    assert {m.p for m in PSPNet(18, width=0.1).modules() if isinstance(m, nn.Dropout2d)} == {0.1}


def test_scaling_measures_every_spatial_kernel_and_leaves_1x1_alone():
    model = small()
    images = F.avg_pool2d(torch.randn(4, 3, 97, 97), 5, stride=1, padding=2)
    settled(model, images)
    sgs = SpatialGradientScaling(model, torch.optim.SGD(model.parameters(), lr=0.1))
    spatial = {
        path for path, module in model.named_modules() if isinstance(module, nn.Conv2d) and max(module.kernel_size) > 1
    }
    assert sgs.scalings.keys() == spatial
    assert {"backbone.conv1", "backbone.layer4.1.conv2", "head.0", "auxiliary.0"} <= spatial
    sgs.update([(images, None)], batches=1, forward=lambda network, batch: network(batch[0], auxiliary=True))
    for path, G in sgs.scalings.items():
        assert G.mean().item() == pytest.approx(1, abs=1e-5), path
        assert (G != 1).any(), path


def test_dilated_kernels_are_measured_at_the_dilated_displacement():
    model = small()
    images = F.avg_pool2d(torch.randn(4, 3, 97, 97), 5, stride=1, padding=2)
    settled(model, images)
    sgs = SpatialGradientScaling(model, torch.optim.SGD(model.parameters(), lr=0.1), k=5)
    sgs.update([(images, None)], batches=1, forward=lambda network, batch: network(batch[0], auxiliary=True))
    layer = model.get_submodule("backbone.layer4.1.conv2")
    assert layer.dilation == (4, 4)
    seen = []
    handle = layer.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
    with torch.no_grad():
        model(images)
    handle.remove()

    def scaling(dilation):
        S = normalized_mutual_information(seen[0], (3, 3), padding=dilation, dilation=dilation)
        G = (5 * S / (4 * S + 1)).nanmean(0)
        return G / G.mean()

    torch.testing.assert_close(sgs.scalings["backbone.layer4.1.conv2"], scaling(4).float(), rtol=1e-4, atol=1e-4)
    assert (sgs.scalings["backbone.layer4.1.conv2"] - scaling(1)).abs().max() > 0.01


@pytest.mark.parametrize("method", [ACB(), DBB(), RepVGG()])
def test_branches_go_in_and_come_out(method):
    model, images = small(), torch.randn(2, 3, 64, 64)
    reparameterize_(model, method)
    settled(model, images)
    with torch.no_grad():
        expected = model(images)
        torch.testing.assert_close(merge(model)(images), expected, rtol=1e-3, atol=1e-3)
