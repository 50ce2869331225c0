"""The pose ResNet: its maps, what scaling does with it, and weights of a backbone."""

import pytest
import torch
from torch import nn

from spatialgrad import SpatialGradientScaling
from spatialgrad.models import create_model, list_models
from spatialgrad.models.resnet_encoder import load_encoder_
from spatialgrad.reparam import DBB, merge, reparameterize_


@pytest.mark.parametrize("name", list_models(task="pose"))
def test_maps_are_a_quarter_of_the_image(name):
    model = create_model(name, num_classes=5, width=0.125, in_channels=1).eval()
    with torch.no_grad():
        for height, width in ((64, 64), (96, 64)):
            assert model(torch.randn(2, 1, height, width)).shape == (2, 5, height // 4, width // 4)


def test_every_weight_gets_a_gradient():
    model = create_model("poseresnet18", num_classes=3, width=0.125)
    model(torch.randn(2, 3, 64, 64)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_transposed_convolutions_are_left_alone_and_listed():
    model = create_model("poseresnet18", num_classes=3, width=0.125)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sgs = SpatialGradientScaling(model, optimizer)
    transposed = [name for name, module in model.named_modules() if isinstance(module, nn.ConvTranspose2d)]
    assert transposed == ["upsample.0", "upsample.3", "upsample.6"]
    assert {name: reason for name, reason in sgs.skipped.items() if name in transposed} == dict.fromkeys(
        transposed, "transposed convolution"
    )
    assert set(sgs.scalings) == {
        name for name, module in model.named_modules() if isinstance(module, nn.Conv2d) and module.kernel_size[0] > 1
    }
    assert all(name.startswith("backbone.") for name in sgs.scalings)
    # What they learn is what they learn without scaling.
    sgs.set_scalings(torch.tensor([[0.5, 1, 0.5], [1, 3, 1], [0.5, 1, 0.5]]))
    before = {name: model.get_submodule(name).weight.detach().clone() for name in transposed}
    model(torch.randn(2, 3, 64, 64)).square().sum().backward()
    gradients = {name: model.get_submodule(name).weight.grad.clone() for name in transposed}
    optimizer.step()
    for name in transposed:
        torch.testing.assert_close(model.get_submodule(name).weight, before[name] - 0.1 * gradients[name])


def test_branches_are_merged_and_transposed_convolutions_stay():
    torch.manual_seed(0)
    model = create_model("poseresnet18", num_classes=3, width=0.125)
    reparameterize_(model, DBB())
    images = torch.randn(4, 3, 64, 64)
    with torch.no_grad():
        model.train()(images)
        expected = model.eval()(images)
        merged = merge(model)
        torch.testing.assert_close(merged(images), expected, rtol=1e-3, atol=1e-5)
    assert sum(isinstance(module, nn.ConvTranspose2d) for module in merged.modules()) == 3


def test_weights_of_a_classification_network_become_the_backbone_s():
    classifier = create_model("resnet18-imagenet", width=0.125, num_classes=7)
    model = create_model("poseresnet18", num_classes=3, width=0.125)
    load_encoder_(model, classifier.state_dict(), source="a test")
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = classifier.eval().forward_stages(images)[-1]
        torch.testing.assert_close(model.eval().backbone(images)[-1], expected)
