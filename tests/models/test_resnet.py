"""ResNet: the same as torchvision's, weights included; dilation instead of stride."""

import pytest
import torch

from spatialgrad.models import create_model


@pytest.fixture(scope="module")
def reference_models():
    return pytest.importorskip("torchvision.models", exc_type=ImportError)


@pytest.mark.parametrize(
    ("layers", "dilated"),
    [(18, (False, False, False)), (34, (False, False, False)), (50, (False, False, False)), (50, (False, True, True))],
)
def test_torchvision_weights_load_and_give_its_logits(reference_models, layers, dilated):
    build = getattr(reference_models, f"resnet{layers}")
    reference = build(weights=None, replace_stride_with_dilation=list(dilated)).eval()
    model = create_model(f"resnet{layers}-imagenet", replace_stride_with_dilation=dilated).eval()
    model.load_state_dict(reference.state_dict(), strict=True)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(images), reference(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["resnet18-imagenet", "resnet50-imagenet", "preactresnet18", "seresnet18"])
@pytest.mark.parametrize("dilated", [(False, False, True), (False, True, True), (True, True, True)])
def test_dilation_keeps_the_maps_at_the_pixels_that_striding_keeps(name, dilated):
    strided = create_model(name, width=0.125, num_classes=10).eval()
    model = create_model(name, width=0.125, num_classes=10, replace_stride_with_dilation=dilated).eval()
    model.load_state_dict(strided.state_dict())
    images = torch.randn(2, 3, 64, 64)
    if name == "seresnet18":
        # The mean over the map depends on its size: only without the excitation are the maps the same.
        for module in (*strided.modules(), *model.modules()):
            if hasattr(module, "se"):
                module.se = torch.nn.Identity()
    with torch.no_grad():
        kept = strided.forward_stages(images)
        maps = model.forward_stages(images)
    factor = 1
    for stage in range(1, 4):
        factor *= 2 if dilated[stage - 1] else 1
        assert maps[stage].shape[-1] == factor * kept[stage].shape[-1]
        torch.testing.assert_close(maps[stage][..., ::factor, ::factor], kept[stage], rtol=1e-3, atol=1e-4)


def test_stages_of_the_imagenet_network_shrink_to_a_32nd():
    model = create_model("resnet50-imagenet", width=0.125).eval()
    with torch.no_grad():
        shapes = [tuple(stage.shape[1:]) for stage in model.forward_stages(torch.randn(1, 3, 64, 64))]
    assert shapes == [(32, 16, 16), (64, 8, 8), (128, 4, 4), (256, 2, 2)]
