import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from spatialgrad.sgs.dependence import histogram, histogram_numba
from spatialgrad.sgs.dependence.estimator import channel_ranges
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
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("size", "kernel_size"),
    [((9,), (3,)), ((6, 7), (3, 3)), ((6, 7), (1, 5)), ((5, 4, 6), (3, 3, 3)), ((8, 8), (4, 2))],
)
def test_every_way_of_counting_agrees_with_numpy(way, threads, dtype, size, kernel_size):
    levels = torch.randint(0, 6, (4, 5, *size), dtype=torch.uint8)
    displacements = Window.of(kernel_size).displacements
    counts = torch.ones(len(displacements), 5, 6, 6, dtype=dtype)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        WAYS[way](counts, levels, displacements)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(counts.long(), count_with_numpy(levels, displacements, 6) + 1)


@pytest.mark.parametrize("way", WAYS)
def test_counts_do_not_depend_on_blocks_or_layout(way, monkeypatch):
    levels = torch.randint(0, 40, (6, 30, 8, 8), dtype=torch.uint8)  # 30 × 40² cells do not fit int16
    displacements = Window.of((3, 3)).displacements
    expected = count_with_numpy(levels, displacements, 40)
    monkeypatch.setattr(histogram, "BLOCK", 100)
    for layout in (torch.contiguous_format, torch.channels_last):
        counts = torch.zeros(4, 30, 40, 40, dtype=torch.int32)
        WAYS[way](counts, levels.contiguous(memory_format=layout), displacements)
        assert torch.equal(counts.long(), expected)


def test_quantize_puts_the_largest_value_into_the_last_bin():
    maps = torch.tensor([[[0.0, 0.24, 0.26, 0.99, 1.0]]])
    out = torch.empty_like(maps, dtype=torch.uint8)
    histogram.quantize(maps, torch.tensor([0.0]), torch.tensor([1.0]), 4, out=out)
    assert out.flatten().tolist() == [0, 0, 1, 3, 3]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_quantize_agrees_with_numpy_histogram_edges(dtype):
    maps = torch.randn(3, 4, 50).to(dtype)
    low, high = channel_ranges(maps)
    out = histogram.quantize(maps, low, high, 9, out=torch.empty_like(maps, dtype=torch.uint8))
    for channel in range(4):
        values = maps[:, channel].double().numpy().ravel()
        expected, _ = np.histogram(values, bins=9, range=(float(low[channel]), float(high[channel])))
        assert np.array_equal(np.bincount(out[:, channel].flatten().numpy(), minlength=9), expected)


def test_quantize_survives_extreme_ranges_and_constants():
    large = torch.finfo(torch.float32).max
    maps = torch.tensor([[[-large, 0.1 * large, large], [7.0, 7.0, 7.0], [1e6, 1e6 + 1, 1e6 + 2]]])
    low, high = channel_ranges(maps)
    out = histogram.quantize(maps, low, high, 2, out=torch.empty_like(maps, dtype=torch.uint8))
    assert out[0].tolist() == [[0, 1, 1], [0, 0, 0], [0, 1, 1]]


@pytest.mark.parametrize("problem", ["import", "cache"])
def test_a_numba_that_does_not_work_stops_nobody(problem, tmp_path):
    """In a fresh process: numba refuses to be imported, or finds no folder for its cache."""
    if problem == "import":
        (tmp_path / "numba.py").write_text("raise ImportError('Numba needs another NumPy')")
    else:
        (tmp_path / "sitecustomize.py").write_text(
            "import numba\nplain = numba.njit\n"
            "def njit(*a, cache=False, **k):\n"
            "    if cache: raise RuntimeError('cannot cache function: no locator available')\n"
            "    return plain(*a, **k)\n"
            "numba.njit = njit\n"
        )
    code = (
        "import warnings, torch; warnings.simplefilter('ignore')\n"
        "from spatialgrad import normalized_mutual_information\n"
        "print(normalized_mutual_information(torch.arange(64.).view(1, 1, 8, 8), 3).shape)"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout == "torch.Size([1, 3, 3])\n", done.stderr


@pytest.mark.parametrize(("pairs", "bins"), [(1, 2), (2, 2), (1024, 11), (1025, 12), (295936, 20)])
def test_sturges(pairs, bins):
    assert histogram.sturges_bins(pairs) == bins
