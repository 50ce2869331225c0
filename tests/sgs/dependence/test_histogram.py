import sys

import numpy as np
import pytest
import torch

from spatialgrad import normalized_mutual_information
from spatialgrad.sgs import dependence
from spatialgrad.sgs.dependence import histogram, histogram_numba
from spatialgrad.sgs.dependence.window import Window, shifted_pair

WAYS = {
    "bincount": histogram._count_by_bincount_,
    "scatter": histogram._count_by_scatter_,  # what a GPU runs; the same code on the CPU
    "compiled": histogram_numba.count_pairs_,
}


def count_with_numpy(levels, displacements, num_levels):
    channels = levels.shape[1]
    counts = np.zeros((len(displacements), channels, num_levels, num_levels), dtype=np.int64)
    for row, offset in enumerate(displacements):
        here, there = shifted_pair(levels, offset)
        for channel in range(channels):
            pairs = here[:, channel].flatten().numpy(), there[:, channel].flatten().numpy()
            np.add.at(counts[row, channel], pairs, 1)
    return torch.from_numpy(counts)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("size", "kernel_size", "threads"),
    [((9,), (3,), 1), ((6, 7), (3, 3), 2), ((6, 7), (1, 5), 1), ((5, 4, 6), (3, 3, 3), 2), ((8, 8), (4, 2), 1)],
)
def test_every_way_of_counting_agrees_with_numpy(way, size, kernel_size, threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    levels = torch.randint(0, 6, (4, 5, *size), dtype=torch.uint8)
    displacements = Window.of(kernel_size).displacements
    expected = count_with_numpy(levels, displacements, 6) + 1
    for variant in (levels, levels.movedim(1, -1).contiguous().movedim(-1, 1)):  # as channels_last has it
        counts = torch.ones(len(displacements), 5, 6, 6, dtype=torch.int64)
        WAYS[way](counts, variant, displacements)
        assert torch.equal(counts, expected)


@pytest.mark.parametrize(
    ("way", "num_levels", "channels", "pieces"),
    [
        ("bincount", 4, 3, 6),  # one piece per sample
        ("bincount", 40, 30, 2),  # 30 × 40² cells do not fit int16: first 20 channels, then 10
        ("bincount", 60, 20, 3),  # 9 channels at a time
        ("bincount", 200, 2, 2),  # not even one channel fits: int32, and one channel at a time
        ("scatter", 4, 30, 6),
    ],
)
def test_counts_do_not_depend_on_the_pieces_in_which_they_are_made(way, num_levels, channels, pieces, monkeypatch):
    """The compiled way has no pieces, but threads for parts of the channels, which another test uses."""
    levels = torch.randint(0, num_levels, (6, channels, 8, 8), dtype=torch.uint8)
    displacements = Window.of((3, 3)).displacements
    monkeypatch.setattr(histogram, "BLOCK", 100)
    made = []
    owner, name = {"bincount": (torch, "bincount"), "scatter": (torch.Tensor, "scatter_add_")}[way]
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: made.append(1) or real(*args, **kwargs))
    counts = torch.zeros(4, channels, num_levels, num_levels, dtype=torch.int32)
    WAYS[way](counts, levels, displacements)
    assert len(made) == pieces * len(displacements)
    assert torch.equal(counts.long(), count_with_numpy(levels, displacements, num_levels))


def test_quantize_agrees_with_numpy_and_survives_extreme_ranges_and_constants():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        maps = torch.randn(3, 1, 200).to(dtype)
        out = histogram.quantize(maps, maps.amin((0, 2)), maps.amax((0, 2)), 9).byte()
        expected, _ = np.histogram(maps.double().numpy(), bins=9)
        assert np.array_equal(np.bincount(out.flatten().numpy(), minlength=9), expected)
    large = torch.finfo(torch.float32).max
    maps = torch.tensor([[[-large, 0.1 * large, large], [7.0, 7.0, 7.0], [1e6, 1e6 + 1, 1e6 + 2]]])
    low, high = maps.amin((0, 2)), maps.amax((0, 2))
    out = histogram.quantize(maps, low, high, 2).byte()
    assert out[0].tolist() == [[0, 1, 1], [0, 0, 0], [0, 1, 1]]


@pytest.fixture
def _numba_not_loaded(monkeypatch):
    """As in a fresh process: nothing knows yet whether the compiled kernel works."""
    monkeypatch.delitem(sys.modules, histogram_numba.__name__)
    monkeypatch.delattr(dependence, "histogram_numba")
    histogram.has_compiled_kernel.cache_clear()
    yield
    histogram.has_compiled_kernel.cache_clear()


@pytest.mark.usefixtures("_numba_not_loaded")
def test_a_numba_that_cannot_be_imported_stops_nobody(tmp_path, monkeypatch):
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs another NumPy')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "numba")
    maps = torch.rand(1, 1, 8, 8)
    with pytest.warns(UserWarning, match="does not work, so counting is slower: Numba needs another NumPy"):
        S = normalized_mutual_information(maps, 3)
    assert S.shape == (1, 3, 3)
    assert torch.equal(normalized_mutual_information(maps, 3), S)  # it says so once


@pytest.mark.usefixtures("_numba_not_loaded")
def test_a_numba_without_a_folder_for_its_cache_stops_nobody(monkeypatch):
    asked = []

    def njit(*, nogil, cache=False):
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr("numba.njit", njit)
    assert normalized_mutual_information(torch.rand(1, 1, 8, 8), 3).shape == (1, 3, 3)
    assert asked == [True, False]


def test_sturges():
    assert list(map(histogram.sturges_bins, (1, 2, 1024, 1025, 295936))) == [2, 2, 11, 12, 20]


def test_nmi_of_known_tables():
    equal = torch.eye(3, dtype=torch.int32)
    independent = torch.ones(3, 3, dtype=torch.int32)
    empty = torch.zeros(3, 3, dtype=torch.int32)
    nmi = histogram.nmi_from_counts(torch.stack([equal, independent, empty]))
    torch.testing.assert_close(nmi[:2], torch.tensor([1.0, 0.0], dtype=torch.float64), atol=1e-12, rtol=0)
    assert nmi[2].isnan()
