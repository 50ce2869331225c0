import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import mutual_info_score
from torch.nn import functional as F

from spatialgrad import normalized_mutual_information
from spatialgrad.sgs.dependence import histogram
from spatialgrad.sgs.dependence.autocorrelation import Autocorrelation
from spatialgrad.sgs.dependence.distant_pairs import DistantMutualInformation
from spatialgrad.sgs.dependence.estimator import channel_ranges
from spatialgrad.sgs.dependence.mutual_information import MutualInformation
from spatialgrad.sgs.dependence.window import Window, shifted_pair


def smooth(*shape):
    """Maps with real spatial dependence, some of it clipped to exact zeros as after a ReLU."""
    maps = torch.randn(*shape)
    pool = {3: F.avg_pool1d, 4: F.avg_pool2d, 5: F.avg_pool3d}[maps.dim()]
    return pool(maps, 3, 1, 1).relu()


def entropy(labels):
    _, counts = np.unique(labels, return_counts=True, axis=0)
    p = counts / counts.sum()
    return -(p * np.log(p)).sum()


def oracle(maps, kernel_size, dilation=1):
    """S of one channel with scikit-learn's mutual information on bins from numpy's own edges."""
    values = maps.double().numpy()
    bins = 1 + math.ceil(math.log2(values.size))
    edges = np.linspace(values.min(), values.max(), bins + 1)
    labels = torch.from_numpy(np.clip(np.digitize(values, edges) - 1, 0, bins - 1))
    S = np.ones(kernel_size)
    for position in np.ndindex(*kernel_size):
        offset = tuple(dilation * (i - k // 2) for i, k in zip(position, kernel_size, strict=True))
        if any(offset):
            p, q = (part.flatten().numpy() for part in shifted_pair(labels, offset))
            S[position] = mutual_info_score(p, q) / entropy(np.stack([p, q], 1))
    return torch.from_numpy(S)


@pytest.mark.parametrize(
    ("size", "kernel_size", "dilation"),
    [((64,), (5,), 1), ((20, 22), (3, 3), 1), ((20, 22), (3, 5), 2), ((20, 22), (1, 7), 1), ((8, 9, 10), (3, 3, 3), 1)],
)
def test_agrees_with_scikit_learn(size, kernel_size, dilation):
    maps = smooth(6, 3, *size).double()
    S = normalized_mutual_information(maps, kernel_size, dilation=dilation)
    for channel in range(3):
        torch.testing.assert_close(S[channel], oracle(maps[:, channel], kernel_size, dilation), atol=1e-6, rtol=0)


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_padded_pixels_take_part(mode):
    maps = smooth(6, 2, 10, 12).double() + 0.5
    padded = F.pad(maps, (2, 2, 1, 1), mode="constant" if mode == "zeros" else mode)
    S = normalized_mutual_information(maps, (3, 5), padding=(1, 2), padding_mode=mode)
    torch.testing.assert_close(S, normalized_mutual_information(padded, (3, 5)))
    assert not torch.allclose(S, normalized_mutual_information(maps, (3, 5)))


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_gaussian_pairs_have_the_closed_form(correlation):
    """I = −½ ln(1 − ρ²) for Gaussian pairs; fine bins and many samples come near it."""
    first = torch.randn(400_000, 1, 1, dtype=torch.float64)
    second = correlation * first + math.sqrt(1 - correlation**2) * torch.randn_like(first)
    maps = torch.cat([first, second], dim=2)
    S = normalized_mutual_information(maps, (3,), bins=64)[0]
    low, high = channel_ranges(maps)
    labels = histogram.quantize(maps, low, high, 64, out=torch.empty_like(maps, dtype=torch.uint8)).squeeze(1).numpy()
    information = float(S[0]) * entropy(labels)
    assert information == pytest.approx(-0.5 * math.log(1 - correlation**2), abs=0.01)


def test_streaming_equals_one_piece():
    maps = smooth(12, 4, 9, 9)
    window = Window.of((3, 3), padding=1)
    estimator = MutualInformation(4, window, maps.device)
    for _ in range(estimator.num_passes):
        for part in maps.split([1, 7, 4]):
            estimator.observe(part)
        estimator.end_pass()
    assert torch.equal(estimator.dependence(), normalized_mutual_information(maps, (3, 3), padding=1))


@pytest.mark.parametrize("kind", [MutualInformation, DistantMutualInformation])
def test_counts_of_many_processes_do_not_overflow(kind):
    """As many processes with the same maps as it takes to have more than 2³¹ pixels: the same dependence."""
    maps, processes = smooth(8, 2, 12, 12), 1 << 27

    def measure(processes):
        estimator = kind(2, Window.of((3, 3)), maps.device, bins=6)
        for _ in range(estimator.num_passes):
            estimator.observe(maps)
            for tensor, reduction in estimator.partials():
                if reduction == "sum":
                    tensor.mul_(processes)
            estimator.end_pass()
        return estimator.dependence()

    torch.testing.assert_close(measure(processes), measure(1))


@pytest.mark.bits
def test_compiled_and_plain_counts_give_identical_results(monkeypatch):
    maps = smooth(8, 5, 12, 12)
    fast = normalized_mutual_information(maps, 3, padding=1)
    monkeypatch.setattr(histogram, "has_compiled_kernel", lambda: False)
    assert torch.equal(normalized_mutual_information(maps, 3, padding=1), fast)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_floating_dtype(dtype):
    maps = smooth(8, 2, 12, 12)
    S = normalized_mutual_information(maps.to(dtype), 3, padding=1)
    assert S.dtype == torch.float64
    torch.testing.assert_close(S, normalized_mutual_information(maps, 3, padding=1), atol=0.05, rtol=0)


def test_channels_last_changes_nothing():
    maps = smooth(8, 5, 12, 12)
    S = normalized_mutual_information(maps.to(memory_format=torch.channels_last), 3, padding=1)
    assert torch.equal(S, normalized_mutual_information(maps, 3, padding=1))


def test_only_the_shape_of_the_distribution_matters():
    maps = smooth(8, 2, 12, 12).double()
    torch.testing.assert_close(
        normalized_mutual_information(3 * maps - 7, 3), normalized_mutual_information(maps, 3), atol=1e-9, rtol=0
    )


def test_constant_channels_are_nan_and_others_are_not():
    maps = smooth(4, 3, 8, 8)
    maps[:, 1] = 2.5
    S = normalized_mutual_information(maps, 3)
    assert S[1].isnan().all()
    assert S[[0, 2]].isfinite().all()


@pytest.mark.parametrize("drop_near", [False, True])
@pytest.mark.parametrize("exponent", [-36, -30, 0, 30, 37])
def test_the_size_of_the_values_does_not_matter(exponent, drop_near):
    maps = smooth(4, 2, 10, 10)
    S = normalized_mutual_information(maps * 10.0**exponent, 3, drop_near=drop_near)
    # A value at the edge of two bins may be rounded into the other.
    torch.testing.assert_close(S, normalized_mutual_information(maps, 3, drop_near=drop_near), atol=1e-2, rtol=0)


@pytest.mark.parametrize("exponent", [-44, -41, -38])
def test_a_range_whose_inverse_overflows_counts_as_empty(exponent):
    maps = smooth(4, 2, 10, 10)
    maps[:, 0] *= 10.0**exponent
    S = normalized_mutual_information(maps, 3)
    assert S[0].isnan().all()
    torch.testing.assert_close(S[1:], normalized_mutual_information(maps[:, 1:], 3))
    assert normalized_mutual_information(maps.double(), 3).isfinite().all()


@pytest.mark.parametrize("kernel_size", [(2, 2), (4,), (4, 3)])
def test_even_kernels_average_the_displacements_on_either_side(kernel_size):
    maps = smooth(6, 1, *(24,) * len(kernel_size)).double()
    S = normalized_mutual_information(maps, kernel_size)[0]
    odd = oracle(maps[:, 0], (5,) * len(kernel_size))  # displacements −2 … 2 on each axis
    for position in np.ndindex(*kernel_size):
        axes = []
        for index, side in zip(position, kernel_size, strict=True):
            place = index - (side - 1) / 2
            axes.append({math.floor(place), math.ceil(place)})
        mean = np.mean([float(odd[tuple(o + 2 for o in offset)]) for offset in itertools.product(*axes)])
        assert float(S[position]) == pytest.approx(mean, abs=1e-9)


@pytest.mark.parametrize("kind", [MutualInformation, DistantMutualInformation, Autocorrelation])
def test_observing_never_waits_for_the_host(kind):
    """On the meta device any look at a value is an error; only the end of a pass, once per layer, may look."""
    maps = torch.empty(4, 6, 9, 9, device="meta")
    real = kind(6, Window.of((3, 3), padding=1), torch.device("cpu"))
    real.observe(torch.rand(4, 6, 9, 9))
    real.end_pass()
    ghost = kind(6, Window.of((3, 3), padding=1), torch.device("meta"))
    ghost.observe(maps)
    ghost.facts()
    ghost.load_state_dict(real.state_dict(), torch.device("meta"))
    ghost.keep_every(1)
    ghost.observe(maps)
    assert ghost.dependence().shape == (6, 3, 3)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("drop_near", [False, True])
def test_values_that_are_not_finite(value, drop_near):
    maps = torch.zeros(2, 2, 8, 8)
    maps[1, 1, 3, 3] = value  # in no pair without a zero
    with pytest.raises(ValueError, match="NaN or infinite"):
        normalized_mutual_information(maps, 3, drop_near=drop_near)


@pytest.mark.parametrize(
    ("maps", "arguments", "error", "message"),
    [
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), {}, TypeError, "uint8"),
        (torch.zeros(8, 8), {}, ValueError, r"\(8, 8\)"),
        (torch.zeros(0, 3, 8, 8), {}, ValueError, "empty"),
        (torch.zeros(2, 3, 8, 8), {"bins": 1}, ValueError, "bins"),
        (torch.zeros(2, 3, 8, 8), {"bins": 256}, ValueError, "255"),
        (torch.zeros(2, 3, 8, 8), {"bins": "scott"}, ValueError, "scott"),
        (torch.zeros(2, 3, 2, 2), {"dilation": 2}, ValueError, "smaller than the displacements"),
    ],
)
def test_bad_input_is_named(maps, arguments, error, message):
    with pytest.raises(error, match=message):
        normalized_mutual_information(maps, 3, **arguments)


def test_no_python_loop_over_channels(monkeypatch):
    """The number of torch operations does not grow with the channels."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Counter.calls += 1
            return func(*args, **(kwargs or {}))

    def operations(channels):
        Counter.calls = 0
        with Counter():
            normalized_mutual_information(torch.rand(2, channels, 8, 8), 3, padding=1)
        return Counter.calls

    monkeypatch.setattr(histogram, "has_compiled_kernel", lambda: False)
    assert operations(4) == operations(64)
