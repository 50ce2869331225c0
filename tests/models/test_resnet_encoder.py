"""Backbone weights from elsewhere: what fits is loaded, what does not is named."""

import pytest
import torch

from spatialgrad.models import EncoderWeightsError, create_model, load_encoder_
from spatialgrad.models.resnet_encoder import ResNetEncoder


@pytest.fixture
def pspnet():
    return create_model("pspnet18", width=0.125)


def classifier_state(name="resnet18-imagenet", width=0.125):
    return create_model(name, width=width, num_classes=7).state_dict()


def assert_loaded(model, state):
    for name, value in model.backbone.state_dict().items():
        assert torch.equal(value, state[name]), name


def test_a_classification_network_of_this_package(pspnet):
    state = classifier_state()
    load_encoder_(pspnet, state, source="somewhere")
    assert_loaded(pspnet, state)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_prefixes_of_wrappers_do_not_matter(pspnet, prefix):
    state = classifier_state()
    load_encoder_(pspnet, {f"{prefix}{name}": value for name, value in state.items()}, source="somewhere")
    assert_loaded(pspnet, state)


def test_the_backbone_of_another_dense_network(pspnet):
    other = create_model("pspnet18", width=0.125, num_classes=3)
    load_encoder_(pspnet, other.state_dict(), source="somewhere")
    assert_loaded(pspnet, other.backbone.state_dict())


@pytest.mark.parametrize("layers", [18, 50])
def test_what_torchvision_saves(layers):
    models = pytest.importorskip("torchvision.models", exc_type=ImportError)
    reference = getattr(models, f"resnet{layers}")(weights=None)
    model = create_model(f"pspnet{layers}")
    load_encoder_(model, reference.state_dict(), source="resnet.pth")
    assert_loaded(model, reference.state_dict())


def test_counters_that_old_checkpoints_do_not_have_may_be_missing(pspnet):
    state = {name: value for name, value in classifier_state().items() if not name.endswith("num_batches_tracked")}
    load_encoder_(pspnet, state, source="somewhere")
    for name, value in state.items():
        if not name.startswith("fc."):
            assert torch.equal(pspnet.backbone.state_dict()[name], value)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda: classifier_state(width=0.25), r"'conv1.weight' is 16×3×7×7 in here.pth, but 8×3×7×7.*depth and width"),
        (lambda: classifier_state("resnet18"), r"'conv1.weight' is 8×3×3×3 in here.pth, but 8×3×7×7.*7×7 stem"),
        (lambda: classifier_state("resnet34-imagenet"), r"here.pth has a weight 'layer1.2.conv1.weight' that"),
        (lambda: classifier_state("vgg11"), r"here.pth has no weight 'conv1.weight'"),
        (
            lambda: {n: v for n, v in classifier_state().items() if n != "layer3.0.bn2.running_var"},
            r"here.pth has no weight 'layer3.0.bn2.running_var' \(merging branches",
        ),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_loaded(pspnet, state, message):
    before = {name: value.clone() for name, value in pspnet.state_dict().items()}
    with pytest.raises(EncoderWeightsError, match=message):
        load_encoder_(pspnet, state(), source="here.pth")
    assert all(torch.equal(value, before[name]) for name, value in pspnet.state_dict().items())


def test_a_network_without_a_backbone():
    with pytest.raises(EncoderWeightsError, match="VGG has no backbone"):
        load_encoder_(create_model("vgg11", width=0.125), {}, source="here.pth")


@pytest.mark.parametrize(("layers", "channels"), [(18, (8, 16, 32, 64)), (50, (32, 64, 128, 256))])
@pytest.mark.parametrize("dilated", [False, True])
def test_the_maps_of_the_four_stages(layers, channels, dilated):
    backbone = ResNetEncoder(layers, width=0.125, in_channels=2, dilated=dilated)
    maps = backbone(torch.randn(2, 2, 64, 64))
    assert backbone.channels == channels == tuple(m.shape[1] for m in maps)
    assert [m.shape[-1] for m in maps] == ([16, 8, 8, 8] if dilated else [16, 8, 4, 2])
    assert not any(name.startswith(("fc", "avgpool")) for name, _ in backbone.named_modules())
