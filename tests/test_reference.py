"""The fast path against `spatialgrad.reference`, which is the paper written out plainly."""

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spatialgrad import SpatialGradientScaling, normalized_mutual_information, reference, scaling_from_dependence
from support.common import TinyNet, images, loss_of


@st.composite
def windows(draw):
    """Maps of 1 to 3 spatial dimensions and a kernel that fits them: dilated, even, padded."""
    dims = draw(st.integers(1, 3))
    side = {1: 14, 2: 9, 3: 6}[dims]
    kernel = tuple(draw(st.lists(st.integers(1, 4 if dims < 3 else 3), min_size=dims, max_size=dims)))
    padding = tuple(draw(st.lists(st.integers(0, 2), min_size=dims, max_size=dims)))
    dilation = tuple(draw(st.lists(st.integers(1, 2 if dims < 3 else 1), min_size=dims, max_size=dims)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    maps = torch.randn(3, 2, *[side] * dims, generator=generator, dtype=torch.float64)
    return maps, kernel, padding, dilation


@settings(deadline=None, max_examples=60)
@given(windows(), st.sampled_from([torch.float32, torch.float64]), st.sampled_from([0.5, 1.0, 5.0]))
def test_dependence_and_scaling(window, dtype, k):
    maps, kernel, padding, dilation = window
    S = normalized_mutual_information(maps.to(dtype), kernel, padding=padding, dilation=dilation)
    expected = reference.spatial_dependence(maps.to(dtype), kernel, padding, dilation)
    # In single precision, a value at the edge of a bin may fall to either side.
    tolerance = 1e-9 if dtype == torch.float64 else 5e-3
    torch.testing.assert_close(S, expected, rtol=0, atol=tolerance)
    G = scaling_from_dependence(S, k)
    torch.testing.assert_close(G, reference.gradient_scaling(expected, k), rtol=0, atol=20 * tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_after_a_hundred_steps(dtype):
    fast = TinyNet().to(dtype)
    plain = copy.deepcopy(fast)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) for model in (fast, plain)]
    sgs = SpatialGradientScaling(fast, optimizers[0])
    G = {}
    for step in range(100):
        x, y = images(seed=step)
        batch = (x.to(dtype), y)
        if step % 40 == 0:
            sgs.update([batch])
            G = reference.measure(plain, batch[0])
        for model, optimizer in zip((fast, plain), optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
        reference.scale_gradients(plain, G)
        for optimizer in optimizers:
            optimizer.step()
    for name, parameter in fast.named_parameters():
        tolerance = {"rtol": 1e-9, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-2, "atol": 1e-3}
        torch.testing.assert_close(parameter, plain.get_parameter(name), **tolerance)
    unscaled = TinyNet().to(dtype)
    assert not torch.allclose(fast.first.weight, unscaled.first.weight, atol=1e-2)


def test_channels_without_entropy_are_left_out():
    maps = torch.randn(2, 3, 6, 6)
    maps[:, 1] = 4.0
    G = reference.gradient_scaling(reference.spatial_dependence(maps, (3, 3), (0, 0), (1, 1)))
    torch.testing.assert_close(G, scaling_from_dependence(normalized_mutual_information(maps, 3)), atol=1e-3, rtol=0)


def test_the_file_stands_alone_and_trains(capsys):
    reference.main()
    lines = capsys.readouterr().out.splitlines()
    assert "G of the second convolution" in lines[0]
    losses = [float(line.split()[3].rstrip(",")) for line in lines if line.startswith("step")]
    assert losses[-1] < losses[0] / 2
    source = Path(reference.__file__).read_text()
    assert "spatialgrad." not in source.replace("spatialgrad.reference", "")
    assert len(source.splitlines()) <= 120
