"""Quantization-aware training with scaled gradients, and graphs that cannot be scaled."""

import pytest
import torch
from torch import nn
from torch.ao import quantization
from torch.nn import functional as F

from spatialgrad import Live, SpatialGradientScaling

# Deprecated by torch, which has nothing else for convolution modules.
pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.ao.quantization is", "ignore:torch.quantize_per", "ignore:.*reduce_range"
)


def network():
    """Prepared for quantization-aware training: a convolution fused with BatchNorm and ReLU, and a bare one."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(quantization.QuantStub(), nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4), quantization.DeQuantStub()),
    )
    model.qconfig = quantization.get_default_qat_qconfig()
    quantization.fuse_modules_qat(model, ["1", "2", "3"], inplace=True)
    return quantization.prepare_qat(model, inplace=True)


def images():
    """Neighbouring pixels depend on each other."""
    return F.avg_pool2d(torch.randn(16, 3, 14, 14, generator=torch.Generator().manual_seed(0)), 3, stride=1)


@pytest.mark.parametrize("live", [False, Live(at=(1,), batches=1)])
def test_scales_the_float_weights_of_quantization_aware_training(live):
    model, x = network(), images()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sgs = SpatialGradientScaling(model, optimizer, live=live)
    assert list(sgs.scalings) == ["1", "4"]

    def backward():
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.arange(16) % 4).backward()

    for _ in range(3):
        backward()
        optimizer.step()
    if not live:
        before = {name: value.clone() for name, value in model.state_dict().items()}
        sgs.update(x)
        # Not even the ranges that fake quantization observes.
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(torch.allclose(G, torch.ones(3, 3), atol=0.1) for G in sgs.scalings.values())
    backward()
    for name, G in sgs.scalings.items():
        weight = model.get_submodule(name).weight
        expected = weight.detach() - 0.1 * G * weight.grad
        optimizer.step()
        torch.testing.assert_close(weight.detach(), expected)
        backward()
    sgs.detach()
    converted = quantization.convert(model.eval())
    assert converted[1].weight().dtype == torch.qint8
    with torch.no_grad():
        assert (converted(x) - model(x)).abs().max() < 0.1


@pytest.mark.skipif(torch.__version__ < (2, 7), reason="torch.export of 2.6 fails for this network")
def test_an_exported_graph_has_no_convolutions():
    graph = torch.export.export(nn.Sequential(nn.Conv2d(3, 3, 3)), (torch.rand(2, 3, 8, 8),)).module()
    both = nn.Sequential(nn.Conv2d(3, 3, 3), graph)
    sgs = SpatialGradientScaling(both, torch.optim.SGD(both.parameters(), lr=0.1))
    assert sgs.skipped["1.0.weight"].startswith("in an exported graph, which has no convolution modules")
    with pytest.raises(ValueError, match="1 × in an exported graph"):
        SpatialGradientScaling(graph, torch.optim.SGD(graph.parameters(), lr=0.1))
