"""What all measures share: they see maps in pieces, of any dtype and layout, and say what they cannot measure."""

import math
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from spatialgrad import autocorrelation, normalized_mutual_information
from spatialgrad.sgs.dependence import histogram, window
from spatialgrad.sgs.dependence.autocorrelation import Autocorrelation
from spatialgrad.sgs.dependence.distant_pairs import DistantMutualInformation
from spatialgrad.sgs.dependence.estimator import FunctionEstimator
from spatialgrad.sgs.dependence.mutual_information import MutualInformation
from spatialgrad.sgs.dependence.window import Window

CPU = torch.device("cpu")
MEASURES = {
    "information": (MutualInformation, normalized_mutual_information),
    "distant": (DistantMutualInformation, partial(normalized_mutual_information, drop_near=True)),
    "autocorrelation": (Autocorrelation, autocorrelation),
}
all_measures = pytest.mark.parametrize("kind", MEASURES)


def smooth(*shape):
    """Maps with real spatial dependence, some of it clipped to exact zeros as after a ReLU."""
    maps = torch.randn(*shape)
    return {3: F.avg_pool1d, 4: F.avg_pool2d, 5: F.avg_pool3d}[maps.dim()](maps, 3, 1, 1).relu()


@all_measures
@pytest.mark.parametrize(
    ("size", "dtype"), [((40,), torch.float16), ((9, 9), torch.float32), ((5, 6, 7), torch.float64)]
)
def test_streaming_equals_one_piece(kind, size, dtype):
    estimator_class, function = MEASURES[kind]
    maps = smooth(12, 4, *size).to(dtype)
    estimator = estimator_class(4, Window.of((3,) * len(size), padding=1), CPU)
    for _ in range(estimator.num_passes):
        for part in maps.split([1, 7, 4]):
            estimator.observe(part)
        estimator.end_pass()
    torch.testing.assert_close(estimator.dependence(), function(maps, 3, padding=1), atol=1e-12, rtol=0)


@all_measures
def test_maps_of_several_blocks(kind, monkeypatch):
    _, function = MEASURES[kind]
    maps = smooth(6, 2, 8, 8) * torch.arange(1.0, 7).view(6, 1, 1, 1)  # no two samples are alike
    whole = function(maps, 3, padding=1)
    monkeypatch.setattr(window, "BLOCK", 2 * 8 * 8)  # each sample is a block
    torch.testing.assert_close(function(maps, 3, padding=1), whole, atol=1e-12, rtol=0)


@all_measures
def test_any_dtype_and_layout(kind):
    _, function = MEASURES[kind]
    maps = smooth(8, 5, 12, 12)
    S = function(maps, 3, padding=1)
    assert S.dtype == torch.float64
    last = function(maps.to(memory_format=torch.channels_last), 3, padding=1)
    torch.testing.assert_close(last, S, atol=1e-9, rtol=0)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        rounded = maps.to(dtype)
        exact = function(rounded.double(), 3, padding=1)
        # A value at the edge of two bins may be rounded into the other.
        torch.testing.assert_close(function(rounded, 3, padding=1), exact, atol=0.02, rtol=0)


@all_measures
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_padded_pixels_take_part(kind, mode):
    _, function = MEASURES[kind]
    maps = smooth(6, 2, 10, 12).double() + 0.5
    padded = F.pad(maps, (2, 2, 1, 1), mode="constant" if mode == "zeros" else mode)
    S = function(maps, (3, 5), padding=(1, 2), padding_mode=mode)
    torch.testing.assert_close(S, function(padded, (3, 5)))
    # Pairs with a zero are among those that the distant variant leaves out.
    assert torch.allclose(S, function(maps, (3, 5))) == (kind == "distant" and mode == "zeros")


@all_measures
def test_the_size_of_the_values_does_not_matter(kind):
    _, function = MEASURES[kind]
    maps = smooth(4, 2, 10, 10)
    # Zeros are special for distant pairs.
    others = [] if kind == "distant" else [7 - 3 * maps]
    for values in [maps * 10.0**exponent for exponent in (-36, -30, 30, 37)] + others:
        torch.testing.assert_close(function(values, 3), function(maps, 3), atol=1e-2, rtol=0)


@all_measures
def test_constant_channels_are_nan_and_others_are_not(kind):
    _, function = MEASURES[kind]
    maps = smooth(4, 3, 8, 8) + 0.1
    maps[:, 1] = 12345.678
    S = function(maps, 3)
    assert S[[0, 2]].isfinite().all()
    if kind == "distant":  # where no pair remains, a neighbour tells nothing
        assert S[1].flatten().tolist() == [0.0] * 4 + [1.0] + [0.0] * 4
        S = function(maps[:, 1:2], 3).expand(2, 3, 3)
    assert S[1].isnan().all()


@all_measures
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_in_any_pass(kind, value):
    estimator_class, function = MEASURES[kind]
    good, bad = torch.zeros(2, 2, 8, 8), torch.zeros(2, 2, 8, 8)
    bad[1, 1, 3, 3] = value  # in no pair without a zero
    with pytest.raises(ValueError, match="NaN or infinite"):
        function(bad, 3)
    for passes in ((good, good), (bad, good), (good, bad)):
        estimator = estimator_class(2, Window.of((3, 3)), CPU)
        for maps in passes:
            estimator.observe(maps)
            estimator.end_pass()
        assert bool(estimator.invalid) == any(maps is bad for maps in passes)


@pytest.mark.parametrize("kind", ["information", "distant"])
def test_counts_of_many_processes_do_not_overflow(kind):
    """As many processes with the same maps as it takes to have more than 2³¹ pixels: the same dependence."""
    maps = smooth(8, 2, 12, 12)

    def measure(processes):
        estimator = MEASURES[kind][0](2, Window.of((3, 3)), CPU, bins=6)
        for _ in range(estimator.num_passes):
            estimator.observe(maps)
            estimator.num_pixels *= processes
            for tensor, reduction in estimator.partials():
                if reduction == "sum":
                    tensor.mul_(processes)
            estimator.end_pass()
        return estimator.dependence()

    torch.testing.assert_close(measure(1 << 27), measure(1))


@pytest.mark.bits
@pytest.mark.parametrize("kind", ["information", "distant"])
def test_compiled_and_plain_counts_give_identical_results(kind, monkeypatch):
    _, function = MEASURES[kind]
    maps = smooth(8, 5, 12, 12)
    fast = function(maps, 3, padding=1)
    monkeypatch.setattr(histogram, "has_compiled_kernel", lambda: False)
    assert torch.equal(function(maps, 3, padding=1), fast)


@pytest.mark.parametrize(
    ("maps", "arguments", "error", "message"),
    [
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), {}, TypeError, "uint8"),
        (torch.zeros(8, 8), {}, ValueError, r"\(8, 8\)"),
        (torch.zeros(0, 3, 8, 8), {}, ValueError, r"got shape \(0, 3, 8, 8\)"),
        (torch.zeros(2, 3, 8, 8), {"bins": 1}, ValueError, "bins"),
        (torch.zeros(2, 3, 8, 8), {"bins": 256}, ValueError, "255"),
        (torch.zeros(2, 3, 8, 8), {"bins": "scott"}, ValueError, "scott"),
        (torch.zeros(2, 3, 2, 2), {"dilation": 2}, ValueError, r"size \(2, 2\) are too small for .*dilation=\(2, 2\)"),
    ],
)
def test_bad_input_is_named(maps, arguments, error, message):
    with pytest.raises(error, match=message):
        normalized_mutual_information(maps, 3, **arguments)


class TestFunctions:
    """A user's function, which sees one batch at a time."""

    def test_it_is_averaged_over_samples_without_what_is_not_finite(self):
        results = iter([torch.tensor([[0.2], [0.5]]), torch.tensor([[0.8], [math.nan]]), torch.full((2, 1), math.nan)])
        estimator = FunctionEstimator(lambda *_, **__: next(results), 2, Window.of((1,)), CPU)
        for number in (3, 1, 5):
            estimator.observe(torch.zeros(number, 2, 4))
        estimator.end_pass()
        torch.testing.assert_close(estimator.dependence(), torch.tensor([[0.35], [0.5]], dtype=torch.float64))

    def test_it_gets_padded_maps_where_it_cannot_pad_them_itself(self):
        seen = []

        def remember(maps, kernel_size, *, padding, dilation, padding_mode):
            seen.append((tuple(maps.shape), padding))
            return torch.ones(maps.shape[1], *kernel_size)

        for kernel_size in (3, 4):
            window = Window.of((kernel_size,), padding="same")
            FunctionEstimator(remember, 1, window, CPU).observe(torch.rand(2, 1, 8))
        assert seen == [((2, 1, 8), (1,)), ((2, 1, 11), (0,))]
