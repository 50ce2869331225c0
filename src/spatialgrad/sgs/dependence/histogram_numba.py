"""Compiled, multi-threaded joint histograms, for the extra ``[fast]``; imported only if numba is installed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import torch
from torch import Tensor

from spatialgrad.sgs.dependence.window import Offset

# Shorter rows cost more to set up than to traverse.
SHORT_ROW = 16


def count_pairs_(counts: Tensor, levels: Tensor, displacements: Sequence[Offset]) -> None:
    """Add the joint histogram of every displacement to `counts`; see `histogram.count_pairs_`."""
    channels = levels.shape[1]
    # 1-d and 2-d maps are 3-d maps with sides of 1.
    missing = 5 - levels.dim()
    volume = levels.reshape(*levels.shape[:2], *(1,) * missing, *levels.shape[2:])
    padded_offsets = [(0,) * missing + offset for offset in displacements]
    # The kernel runs along the last dimension: rows of pixels, or samples where the rows are short.
    if volume.shape[-1] < SHORT_ROW and len(volume) > volume.shape[-1]:
        walk, offsets = volume.permute(1, 2, 3, 4, 0), [(*offset, 0) for offset in padded_offsets]
    else:
        walk, offsets = volume.transpose(0, 1), [(0, *offset) for offset in padded_offsets]
    steps = np.array(offsets, dtype=np.int64).reshape(-1, 4)
    pixels = walk.contiguous().numpy()
    table = counts.numpy()
    num_threads = min(torch.get_num_threads(), channels)
    if num_threads == 1:
        _count_channels(pixels, table, steps, 0, channels)
        return
    # Python threads around a kernel that releases the GIL: numba's own thread pools do not survive a fork.
    edges = np.linspace(0, channels, 4 * num_threads + 1).astype(int)
    with ThreadPoolExecutor(num_threads) as pool:
        parts = [
            pool.submit(_count_channels, pixels, table, steps, first, last) for first, last in itertools.pairwise(edges)
        ]
        for part in parts:
            part.result()


def _compile(function: Callable[..., None]) -> Callable[..., None]:
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:
        # Neither the package's nor the user's folder is writable: compile in every process.
        return numba.njit(nogil=True)(function)


@_compile
def _count_channels(pixels, counts, steps, first, last):  # type: ignore[no-untyped-def] # pragma: no cover
    """Count for the channels first … last − 1; pixels: (channels, a, b, c, d), steps: (displacements, 4)."""
    _, size_a, size_b, size_c, size_d = pixels.shape
    num_levels = np.uint32(counts.shape[2])
    # Equal pairs come in runs, and an increment must wait for the one before it in the same cell:
    # four tables in turn keep the increments independent.
    tables = np.zeros((4, counts.shape[2] * counts.shape[3]), counts.dtype)
    t0, t1, t2, t3 = tables[0], tables[1], tables[2], tables[3]
    for channel in range(first, last):
        for row in range(steps.shape[0]):
            da, db, dc, dd = steps[row]
            left, length = max(0, -dd), size_d - abs(dd)
            whole = length - length % 4
            tables[:] = 0
            for a in range(max(0, -da), size_a - max(0, da)):
                for b in range(max(0, -db), size_b - max(0, db)):
                    for c in range(max(0, -dc), size_c - max(0, dc)):
                        here = pixels[channel, a, b, c, left : left + length]
                        there = pixels[channel, a + da, b + db, c + dc, left + dd : left + dd + length]
                        for d in range(0, whole, 4):
                            t0[np.uint32(here[d]) * num_levels + there[d]] += 1
                            t1[np.uint32(here[d + 1]) * num_levels + there[d + 1]] += 1
                            t2[np.uint32(here[d + 2]) * num_levels + there[d + 2]] += 1
                            t3[np.uint32(here[d + 3]) * num_levels + there[d + 3]] += 1
                        for d in range(whole, length):
                            t0[np.uint32(here[d]) * num_levels + there[d]] += 1
            flat = counts[row, channel].ravel()
            for cell in range(flat.size):
                flat[cell] += t0[cell] + t1[cell] + t2[cell] + t3[cell]
