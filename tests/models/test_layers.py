"""Channel counts, and the initialisation of every family as its published code has it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from spatialgrad.models import create_model, list_models
from spatialgrad.models.layers import init_he_, scale_channels


@given(st.integers(1, 4096), st.floats(0.001, 4), st.integers(1, 32))
def test_scaled_channels_are_the_nearest_positive_multiple(channels, width, multiple):
    scaled = scale_channels(channels, width, multiple)
    assert scaled >= multiple
    assert scaled % multiple == 0
    assert scaled == multiple or abs(scaled - channels * width) <= multiple / 2 + 1e-6
    assert scale_channels(channels, 1.0) == channels


def test_he_keeps_the_variance_of_the_gradient_through_a_rectified_layer():
    layer = nn.Conv2d(64, 64, 3, padding=1, padding_mode="circular")
    init_he_(layer)
    x = torch.randn(8, 64, 16, 16, requires_grad=True)
    y = layer(x)
    gradient = torch.randn_like(y) * (torch.rand_like(y) < 0.5)  # what a rectifier lets through: a half
    y.backward(gradient)
    # The half of the variance that the rectifier takes is what the 2 of the formula gives back.
    assert x.grad.var().item() == pytest.approx(1.0, rel=0.15)


def test_he_changes_the_weights_of_convolutions_only():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 8))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    init_he_(model)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"0.weight"}


def weighted_layers(model, kind=(nn.Conv2d, nn.Linear)):
    return [(name, module) for name, module in model.named_modules() if isinstance(module, kind)]


def assert_uniform(values, bound, name):
    assert values.abs().max().item() <= bound * (1 + 1e-6), name
    if values.numel() >= 1000:
        assert values.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15), name


def assert_torch_default(layer, name):
    """torch draws weight and bias of both kinds of layers from ± 1 / √fan-in."""
    bound = 1 / math.sqrt(layer.weight[0].numel())
    assert_uniform(layer.weight, bound, name)
    if layer.bias is not None:
        assert_uniform(layer.bias, bound, name)
        assert layer.bias.any(), name


def assert_he(layer, name):
    fan_out = layer.weight[:, 0].numel()
    if layer.weight.numel() >= 1000:
        assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.15), name
        assert layer.weight.mean().abs().item() < 0.2 * math.sqrt(2 / fan_out), name


SLIM = list_models("*-slim") + list_models("*-linear")
HE = list_models("resnet*-imagenet") + list_models("pyramidnet*")


@pytest.mark.parametrize("name", [name for name in list_models() if not name.startswith("convnext")])
def test_initialisation_is_that_of_the_published_code(name):
    """He convolutions in ImageNet, pyramid and slim networks, torch's default in the CIFAR zoo.

    Slim networks draw their linear layers by fan-out.
    """
    for path, layer in weighted_layers(create_model(name, width=0.25, num_classes=100)):
        if isinstance(layer, nn.Conv2d) and name in [*SLIM, *HE]:
            assert_he(layer, path)
        elif name in SLIM:
            assert_uniform(layer.weight, 1 / math.sqrt(layer.out_features), path)
            assert layer.weight.abs().max().item() > 0.9 / math.sqrt(layer.out_features)
            assert not layer.bias.any(), path
        else:
            assert_torch_default(layer, path)


@pytest.mark.parametrize("name", list_models(task=None))
def test_batch_normalization_starts_as_the_identity(name):
    for path, layer in weighted_layers(create_model(name, width=0.125), nn.BatchNorm2d):
        assert (layer.weight == 1).all(), path
        assert (layer.bias == 0).all(), path
