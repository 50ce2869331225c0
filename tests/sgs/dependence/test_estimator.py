import math

import pytest
import torch

from spatialgrad.sgs.dependence.estimator import FunctionEstimator, Ranges, channel_ranges
from spatialgrad.sgs.dependence.window import Window


def test_ranges_preserve_what_is_not_finite():
    maps = torch.tensor([[[1.0, math.nan], [1.0, math.inf], [1.0, -math.inf], [1.0, 2.0]]])
    low, high = channel_ranges(maps)
    assert low.tolist() == [-math.inf, 1.0, -math.inf, 1.0]
    assert high.tolist() == [math.inf, math.inf, 1.0, 2.0]


def test_ranges_of_several_maps():
    ranges = Ranges(1, torch.device("cpu"))
    for values in ([1.0, 2.0], [-3.0, 0.0]):
        ranges.observe(torch.tensor([[values]]))
    ranges.check()
    assert (float(ranges.low), float(ranges.high)) == (-3.0, 2.0)
    ranges.observe(torch.tensor([[[math.nan]]]))
    with pytest.raises(ValueError, match="contain NaN"):
        ranges.check()


def test_a_function_is_averaged_over_samples_without_what_is_not_finite():
    results = iter([torch.tensor([[0.2], [0.5]]), torch.tensor([[0.8], [math.nan]]), torch.full((2, 1), math.nan)])
    estimator = FunctionEstimator(lambda *_, **__: next(results), 2, Window.of((1,)), torch.device("cpu"))
    for number in (3, 1, 5):
        estimator.observe(torch.zeros(number, 2, 4))
    estimator.end_pass()
    torch.testing.assert_close(estimator.dependence(), torch.tensor([[0.35], [0.5]], dtype=torch.float64))


def test_a_function_gets_padded_maps_where_it_cannot_pad_them_itself():
    seen = []

    def remember(maps, kernel_size, *, padding, dilation, padding_mode):
        seen.append((tuple(maps.shape), padding))
        return torch.ones(maps.shape[1], *kernel_size)

    for kernel_size in (3, 4):
        window = Window.of((kernel_size,), padding="same")
        FunctionEstimator(remember, 1, window, torch.device("cpu")).observe(torch.rand(2, 1, 8))
    assert seen == [((2, 1, 8), (1,)), ((2, 1, 11), (0,))]


@pytest.mark.parametrize("shape", [(5, 3, 2, 2), (5, 3, 8, 8), (5, 3, 9, 9), (5, 3, 7), (5, 3, 2, 2, 2), (1, 1, 1, 1)])
@pytest.mark.parametrize("special", [None, math.nan, math.inf, -math.inf])
def test_ranges_of_small_and_large_maps(shape, special):
    maps = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    if special is not None:
        maps[-1, -1].view(-1)[-1] = special
    variants = [maps, maps.movedim(1, -1).contiguous().movedim(-1, 1)]  # the second one as channels_last has it
    for variant in variants:
        low, high = channel_ranges(variant)
        for channel in range(shape[1]):
            values = maps[:, channel].double().flatten()
            if values.isnan().any():
                assert (float(low[channel]), float(high[channel])) == (-math.inf, math.inf)
            else:
                assert (float(low[channel]), float(high[channel])) == (float(values.min()), float(values.max()))
