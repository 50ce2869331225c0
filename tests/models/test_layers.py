"""Channel counts and initialisations, against their formulas."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from spatialgrad.models.layers import init_glorot_, init_he_, scale_channels


@given(st.integers(1, 4096), st.floats(0.001, 4), st.integers(1, 32))
def test_scaled_channels_are_the_nearest_positive_multiple(channels, width, multiple):
    scaled = scale_channels(channels, width, multiple)
    assert scaled >= multiple
    assert scaled % multiple == 0
    assert scaled == multiple or abs(scaled - channels * width) <= multiple / 2 + 1e-6


@given(st.integers(1, 4096))
def test_width_1_changes_nothing(channels):
    assert scale_channels(channels, 1.0) == channels


@pytest.mark.parametrize("groups", [1, 4, 64])
def test_he_keeps_the_variance_of_the_gradient_through_a_rectified_layer(groups):
    layer = nn.Conv2d(64, 64, 3, padding=1, padding_mode="circular", groups=groups)
    init_he_(layer)
    x = torch.randn(8, 64, 16, 16, requires_grad=True)
    y = layer(x)
    gradient = torch.randn_like(y) * (torch.rand_like(y) < 0.5)  # what a rectifier lets through: a half
    y.backward(gradient)
    # The half of the variance that the rectifier takes is what the 2 of the formula gives back.
    assert x.grad.var().item() == pytest.approx(1.0, rel=0.15)


def test_he_of_linear_layers_and_biases():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Linear(256, 256))
    init_he_(model)
    assert model[1].weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert not model[0].bias.any()
    assert not model[1].bias.any()


@pytest.mark.parametrize(
    ("layer", "fan_in", "fan_out"),
    [
        (nn.Linear(300, 200), 300, 200),
        (nn.Conv2d(64, 32, 3), 64 * 9, 32 * 9),
        (nn.Conv2d(512, 512, 3, groups=512), 9, 9),
        (nn.Conv2d(64, 128, (1, 3), groups=4), 16 * 3, 32 * 3),
    ],
    ids=["linear", "convolution", "depthwise", "grouped"],
)
def test_glorot_is_uniform_between_its_bounds(layer, fan_in, fan_out):
    init_glorot_(layer)
    bound = math.sqrt(6 / (fan_in + fan_out))
    assert layer.weight.abs().max().item() == pytest.approx(bound, rel=0.01)
    assert layer.weight.abs().max() <= bound
    assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
    assert not layer.bias.any()


@pytest.mark.parametrize("init_", [init_he_, init_glorot_])
def test_batch_normalization_starts_as_the_identity(init_):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    init_(model)
    assert (model[1].weight == 1).all()
    assert (model[1].bias == 0).all()
