"""SpatialGradientScaling on every network: it finds the convolutions, measures, and scales the step."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from spatialgrad import SpatialGradientScaling
from spatialgrad.models import create_model, list_models
from support.models import settled

LEARNING_RATE = 0.01


@pytest.mark.parametrize("name", list_models())
def test_scaling_attaches_and_updates(name):
    model = create_model(name, num_classes=10, width=0.125)
    side = 64 if name.endswith("-imagenet") else 32
    images, labels = torch.randn(4, 3, side, side), torch.arange(4)
    # Neighbouring pixels must resemble each other: noise has nothing to measure.
    images = F.avg_pool2d(images, 5, stride=1, padding=2)
    settled(model, images).train()
    convolutions = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.Conv2d) and min(module.kernel_size) > 1
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    sgs = SpatialGradientScaling(model, optimizer, k=5)
    assert sgs.scalings.keys() == convolutions.keys()
    before = {path: tensor.clone() for path, tensor in model.state_dict().items()}
    sgs.update([(images, labels)], batches=1)
    for path, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[path]), path
    for path, scaling in sgs.scalings.items():
        assert scaling.shape == convolutions[path].kernel_size
        assert scaling.mean().item() == pytest.approx(1.0, abs=1e-5), path
        assert (scaling > 0).all(), path
    assert sum((scaling != 1).any().item() for scaling in sgs.scalings.values()) > len(convolutions) / 2

    F.cross_entropy(model(images), labels).backward()
    gradients = {path: module.weight.grad.clone() for path, module in convolutions.items()}
    optimizer.step()
    for path, module in convolutions.items():
        expected = before[f"{path}.weight"] - LEARNING_RATE * gradients[path] * sgs.scalings[path]
        torch.testing.assert_close(module.weight.detach(), expected)
