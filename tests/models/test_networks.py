"""What must hold for every kind of network: shapes, gradients, learning, seeds, scaling, compilation."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from spatialgrad import SpatialGradientScaling
from spatialgrad.models import create_model
from support.compiling import needs_compiler
from support.models import settled

# One of each kind, and of depths that build differently; the sizes of all are tested with the registry.
NETWORKS = [
    "convnext-atto",
    "convnext-atto-imagenet",
    "mobilenetv2",
    "preactresnet18",
    "pyramidnet110-a48",
    "resnet18",
    "resnet50-imagenet",
    "seresnet18",
    "shufflenet",
    "vgg11",
    "vgg11-linear",
    "vgg16-slim",
    "xception",
]
LEARNING_RATE = 0.01

every_network = pytest.mark.parametrize("name", NETWORKS)


def small(name, **options):
    # ConvNeXt's blocks do next to nothing at first, which would hide what is wrong with them. All of PyramidNet's
    # layers are of the same kind.
    usual = {"layer_scale": 1.0} if name.startswith("convnext") else {}
    usual |= {"layers": 20} if name.startswith("pyramidnet") else {}
    return create_model(name, **{"num_classes": 10, "width": 0.125, **usual, **options})


def batch(name, num_images=8):
    # The ImageNet networks shrink an image 32 times, so that smaller ones would leave batch normalization one pixel
    # per channel.
    side = 64 if name.endswith("-imagenet") else 32
    return torch.randn(num_images, 3, side, side), torch.arange(num_images) % 10


@every_network
def test_logits(name):
    images, _ = batch(name, num_images=3)
    model = settled(small(name), images)
    with torch.no_grad():
        together = model(images)
        assert together.shape == (3, 10)
        assert together.isfinite().all()
        # Neither the other images of a batch nor the format in memory matter.
        torch.testing.assert_close(model(images[1:2])[0], together[1], rtol=1e-3, atol=1e-4)
        last = model.to(memory_format=torch.channels_last)
        torch.testing.assert_close(last(images.to(memory_format=torch.channels_last)), together, rtol=1e-3, atol=1e-4)


@every_network
def test_images_that_are_neither_square_nor_coloured_nor_even_sized(name):
    # 28 pixels are fewer than one after patches of 4×4 and three halvings.
    height, width = (60, 67) if name == "convnext-atto-imagenet" else (28, 35)
    with torch.no_grad():
        assert small(name, in_channels=1).eval()(torch.randn(2, 1, height, width)).isfinite().all()


@every_network
def test_one_training_step_lowers_the_loss(name):
    model = small(name)
    images, labels = batch(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)

    def loss():
        torch.manual_seed(1)  # the same dropout before and after
        return F.cross_entropy(model(images), labels)

    before = loss()
    before.backward()
    optimizer.step()
    with torch.no_grad():
        assert loss() < before


@every_network
def test_gradient_reaches_every_parameter(name):
    # With the batch's own statistics, batch normalization takes every constant and every scale before it out
    # again: such parameters would have no gradient by rights. With fixed statistics, all have one.
    # The few hidden numbers of an excitation may all be rectified to 0 under one seed, not under every seed.
    images, labels = batch(name)
    unreached = {path for path, _ in small(name).named_parameters()}
    for seed in range(4):
        torch.manual_seed(seed)
        model = settled(small(name), images)
        F.cross_entropy(model(images), labels).backward()
        for path, parameter in model.named_parameters():
            assert parameter.grad is not None, path
            assert parameter.grad.isfinite().all(), path
            if parameter.grad.abs().max() > 1e-7:
                unreached.discard(path)
        if not unreached:
            break
    assert not unreached


@every_network
def test_the_seed_decides_the_weights(name):
    def weights(seed):
        torch.manual_seed(seed)
        return small(name).state_dict()

    first, second, other = weights(1), weights(1), weights(2)
    for path, tensor in first.items():
        assert torch.equal(tensor, second[path]), path
        if path.endswith("weight") and tensor.ndim > 1:
            assert not torch.equal(tensor, other[path]), path


@every_network
def test_scaling_attaches_measures_and_scales_the_step(name):
    images, labels = batch(name, num_images=4)
    # Neighbouring pixels must resemble each other: noise has nothing to measure.
    images = F.avg_pool2d(images, 5, stride=1, padding=2)
    model = settled(create_model(name, num_classes=10, width=0.125), images).train()
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


def gradient_of(model, network, images, labels):
    model.zero_grad()
    F.cross_entropy(network(images), labels).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


# Capturing the graph shows whether a network can be compiled as a whole; generating code for one of them is enough.
@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *(
            pytest.param(name, "eager", marks=() if name in ("vgg11", "resnet18") else pytest.mark.slow)
            for name in NETWORKS
            if not name.endswith("-imagenet")
        ),
        pytest.param("vgg11", "inductor", marks=[pytest.mark.slow, needs_compiler]),
    ],
)
def test_the_compiled_network_gives_the_same_logits_and_gradient(name, backend):
    images, labels = batch(name, num_images=2)
    model = settled(small(name), images)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), model(images), rtol=1e-3, atol=1e-4)
    expected = gradient_of(model, model, images, labels)
    # As a whole, because rounding may take a number that is 0 but for 1e-7 to the rectifier's other side.
    assert (gradient_of(model, compiled, images, labels) - expected).norm() < 0.02 * expected.norm()
