"""The compiled, multi-threaded counts of the extra ``[fast]``; only imported where numba is installed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import torch
from torch import Tensor

from spatialgrad.dependence.window import Offset


def count_pairs_(counts: Tensor, levels: Tensor, displacements: Sequence[Offset]) -> None:
    """Add the joint histogram of every displacement to `counts`; see `histogram.count_pairs_`."""
    channels = levels.shape[1]
    # 1-d and 2-d maps are 3-d maps with sides of 1.
    missing = 5 - levels.dim()
    volume = levels.contiguous().reshape(*levels.shape[:2], *(1,) * missing, *levels.shape[2:]).numpy()
    offsets = np.array([(0,) * missing + offset for offset in displacements], dtype=np.int64).reshape(-1, 3)
    table = counts.numpy()
    num_threads = min(torch.get_num_threads(), channels)
    if num_threads == 1:
        _count_channels(volume, table, offsets, 0, channels)
        return
    # Threads of our own around a kernel that releases the GIL: numba's thread pools do not survive a fork.
    edges = np.linspace(0, channels, 4 * num_threads + 1).astype(int)
    with ThreadPoolExecutor(num_threads) as pool:
        parts = [
            pool.submit(_count_channels, volume, table, offsets, first, last)
            for first, last in itertools.pairwise(edges)
        ]
        for part in parts:
            part.result()


@numba.njit(nogil=True, cache=True)
def _count_channels(volume, counts, offsets, first, last):  # type: ignore[no-untyped-def] # pragma: no cover
    samples, _, depth, height, width = volume.shape
    num_levels = np.uint32(counts.shape[2])
    # Equal pairs come in runs, and an increment must wait for the one before it in the same cell:
    # four tables in turn keep the increments independent.
    tables = np.zeros((4, counts.shape[2] * counts.shape[3]), counts.dtype)
    t0, t1, t2, t3 = tables[0], tables[1], tables[2], tables[3]
    for channel in range(first, last):
        for row in range(offsets.shape[0]):
            dz, dy, dx = offsets[row]
            left, length = max(0, -dx), width - abs(dx)
            whole = length - length % 4
            tables[:] = 0
            for sample in range(samples):
                for z in range(max(0, -dz), depth - max(0, dz)):
                    for y in range(max(0, -dy), height - max(0, dy)):
                        here = volume[sample, channel, z, y, left : left + length]
                        there = volume[sample, channel, z + dz, y + dy, left + dx : left + dx + length]
                        for x in range(0, whole, 4):
                            t0[np.uint32(here[x]) * num_levels + there[x]] += 1
                            t1[np.uint32(here[x + 1]) * num_levels + there[x + 1]] += 1
                            t2[np.uint32(here[x + 2]) * num_levels + there[x + 2]] += 1
                            t3[np.uint32(here[x + 3]) * num_levels + there[x + 3]] += 1
                        for x in range(whole, length):
                            t0[np.uint32(here[x]) * num_levels + there[x]] += 1
            flat = counts[row, channel].ravel()
            for cell in range(flat.size):
                flat[cell] += t0[cell] + t1[cell] + t2[cell] + t3[cell]
