"""Joint histograms of neighbouring pixels: quantization, integer counts, and their normalized mutual information."""

from __future__ import annotations

import functools
import importlib.util
import math
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from spatialgrad.sgs.dependence.estimator import wide_dtype
from spatialgrad.sgs.dependence.window import BLOCK, Offset, blocks, shifted_pair

MAX_BINS = 255  # levels are uint8, and one is reserved for exact zeros


def check_bins(bins: int | str) -> None:
    """Raise `ValueError` unless `bins` is a usable number of bins or the name of a rule."""
    if bins == "sturges" or (isinstance(bins, int) and 2 <= bins <= MAX_BINS):
        return
    raise ValueError(f"Invalid bins: {bins!r}; choose 'sturges' or a number from 2 to {MAX_BINS}.")


def sturges_bins(num_pairs: int) -> int:
    """Return the number of bins by Sturges' rule: 1 + ⌈log₂ n⌉ for n pairs."""
    return 1 + math.ceil(math.log2(max(num_pairs, 2)))


def count_dtype(num_pairs: int) -> torch.dtype:
    """Return an integer type that no count exceeds, given the number of pairs when the ranges were taken.

    Training batches that are counted later may be larger than those; four times as many pairs are safe.
    """
    return torch.int64 if num_pairs > torch.iinfo(torch.int32).max // 4 else torch.int32


def bin_grid(low: Tensor, high: Tensor, bins: int | Tensor) -> tuple[Tensor, Tensor]:
    """Return the floor f and the scale s of bins of equal width, so that ⌊(value − f) · s⌋ is the bin of a value.

    The upper limit itself lands just above the last bin. Where a range is empty, both are 0.
    """
    # Halves, because the width of the widest range would overflow.
    half = high / 2 - low / 2
    # A range so small that its inverse overflows counts as empty.
    usable = half > bins / torch.finfo(half.dtype).max
    return torch.where(usable, low, 0.0), torch.where(usable, bins / 2 / half, 0.0)


def quantize(maps: Tensor, low: Tensor, high: Tensor, bins: int) -> Tensor:
    """Quantize values into bins 0 … bins − 1 of equal width between their channel's `low` and `high`.

    Args:
        maps: Shape (batch, channels, *spatial), finite.
        low: Shape (channels,).
        high: Shape (channels,); values above it fall into the last bin.
        bins: Number of bins.

    Returns:
        Floating point numbers of the shape of `maps`; converting them to uint8 truncates them to their bins.
    """
    shape = (1, -1, *(1,) * (maps.dim() - 2))
    dtype = torch.float64 if maps.dtype == torch.float64 else torch.float32
    floor, scale = (part.view(shape) for part in bin_grid(low.to(dtype), high.to(dtype), bins))
    return torch.sub(maps, floor).mul_(scale).clamp_(0, bins - 1)


def count_pairs_(counts: Tensor, levels: Tensor, displacements: Sequence[Offset]) -> None:
    """Add the joint histogram of every displacement to `counts`, in place.

    Args:
        counts: int32 or int64, shape (displacements, channels, levels, levels).
        levels: uint8 levels of the padded maps, shape (batch, channels, *spatial).
        displacements: Offsets in pixels, one per row of `counts`.
    """
    if levels.device.type != "cpu":
        _count_by_scatter_(counts, levels, displacements)
    elif has_compiled_kernel():
        from spatialgrad.sgs.dependence import histogram_numba

        histogram_numba.count_pairs_(counts, levels, displacements)
    else:
        _count_by_bincount_(counts, levels, displacements)


def nmi_from_counts(counts: Tensor) -> Tensor:
    """Return the normalized mutual information of one joint histogram per channel.

    Args:
        counts: Integer counts, shape (channels, levels, levels).

    Returns:
        Shape (channels,), between 0 and 1; NaN where the joint entropy is 0.
    """
    joint = counts.to(wide_dtype(counts.device))
    joint = joint / joint.sum((1, 2), keepdim=True).clamp_(min=1)
    joint_entropy = torch.special.entr(joint).sum((1, 2))
    entropies = torch.special.entr(joint.sum(1)).sum(1) + torch.special.entr(joint.sum(2)).sum(1)
    nmi = ((entropies - joint_entropy) / joint_entropy).clamp(0, 1)
    return torch.where(joint_entropy > 0, nmi, math.nan)


@functools.cache
def has_compiled_kernel() -> bool:
    """Return whether the extra ``[fast]`` (numba) works here; warns once if numba is installed but broken."""
    if importlib.util.find_spec("numba") is None:
        return False
    try:
        importlib.import_module("spatialgrad.sgs.dependence.histogram_numba")
    except Exception as error:
        # Another package may have installed an incompatible numba, which must not stop a training run.
        warnings.warn(f"numba is installed but does not work, so counting is slower: {error}", stacklevel=2)
        return False
    return True


def _pair_indices(
    counts: Tensor, levels: Tensor, displacements: Sequence[Offset], dtype: torch.dtype, block_size: int
) -> Iterator[tuple[int, Tensor]]:
    """Yield, for each block and displacement, the flat index of every pair in that displacement's counts."""
    channels, num_levels = counts.shape[1:3]
    base = torch.arange(channels, device=levels.device, dtype=dtype) * num_levels**2
    base = base.view(1, -1, *(1,) * (levels.dim() - 2))
    for block in blocks(levels, block_size):
        there = block.to(dtype)
        here = there * num_levels + base
        for row, offset in enumerate(displacements):
            yield row, (shifted_pair(here, offset)[0] + shifted_pair(there, offset)[1]).flatten()


def _count_by_bincount_(counts: Tensor, levels: Tensor, displacements: Sequence[Offset]) -> None:
    # Narrow indices halve the memory traffic, which dominates on a CPU: as many channels at a time as fit.
    fitting = torch.iinfo(torch.int16).max // counts[0, 0].numel()
    dtype = torch.int16 if fitting else torch.int32
    for part, pixels in zip(*(torch.split(tensor, max(1, fitting), 1) for tensor in (counts, levels)), strict=True):
        cells = part[0].numel()
        for row, index in _pair_indices(part, pixels, displacements, dtype, max(BLOCK, 4 * cells)):
            part[row].view(-1).add_(torch.bincount(index, minlength=cells))


def _count_by_scatter_(counts: Tensor, levels: Tensor, displacements: Sequence[Offset]) -> None:
    # bincount synchronizes to learn the size of its result; scattering into fixed counts does not.
    one = torch.ones(1, dtype=counts.dtype, device=counts.device)
    for row, index in _pair_indices(counts, levels, displacements, torch.int64, 16 * BLOCK):
        counts[row].view(-1).scatter_add_(0, index, one.expand_as(index))
