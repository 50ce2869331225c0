"""Normalized mutual information between the pixels of a map and their neighbours (the paper's measure)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from spatialgrad.sgs.dependence.distant_pairs import DistantMutualInformation
from spatialgrad.sgs.dependence.estimator import EstimatorFactory, Ranges, Stateful, measure_in_one_piece, no_facts
from spatialgrad.sgs.dependence.histogram import (
    check_bins,
    count_pairs_,
    needs_wide_counts,
    nmi_from_counts,
    quantize,
    sturges_bins,
)
from spatialgrad.sgs.dependence.window import Window
from spatialgrad.torch_utils.distributed import Reduction


def normalized_mutual_information(
    maps: Tensor,
    kernel_size: int | Sequence[int],
    *,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    padding_mode: str = "zeros",
    bins: int | str = "sturges",
    drop_near: bool = False,
) -> Tensor:
    """Measure how much a pixel tells about every neighbour that a kernel sees.

    For the values P of all pixels and Q of their neighbours at one displacement this is
    (H(P) + H(Q) − H(P, Q)) / H(P, Q), with the entropies of a joint histogram over the whole batch: 0 for independent
    pixels, 1 if each determines the other.

    Args:
        maps: Input maps of a convolution, shape (batch, channels, *spatial) with 1 to 3 spatial dimensions.
        kernel_size: The convolution's kernel size.
        padding: The convolution's padding; padded pixels take part in the pairs.
        dilation: The convolution's dilation: neighbours are this many pixels apart.
        padding_mode: The convolution's padding mode.
        bins: Number of equal bins between a channel's smallest and largest value, or ``"sturges"``.
        drop_near: Leave out pairs with an exact zero and pairs in the same bin (the paper's ImageNet variant, for
            high-resolution images with many repeated pixels).

    Returns:
        S of shape (channels, *kernel_size), 1 at the centre, in float64 where the device supports it. Channels that
        carry no information are NaN.

    Example:
        >>> import torch
        >>> stripes = torch.tensor([0.0, 1.0]).repeat(8).view(1, 1, 16)
        >>> normalized_mutual_information(stripes, 3)
        tensor([[1., 1., 1.]], dtype=torch.float64)
        >>> normalized_mutual_information(torch.rand(8, 3, 32, 32), 3, padding=1).shape
        torch.Size([3, 3, 3])
    """
    make = mutual_information_factory(bins=bins, drop_near=drop_near)
    return measure_in_one_piece(make, maps, kernel_size, padding=padding, dilation=dilation, padding_mode=padding_mode)


def mutual_information_factory(*, bins: int | str, drop_near: bool) -> EstimatorFactory:
    """Return what builds the estimators of `normalized_mutual_information`; arguments as there."""
    return partial(DistantMutualInformation if drop_near else MutualInformation, bins=bins)


class MutualInformation(Stateful):
    """Streaming form of `normalized_mutual_information` without `drop_near`: first the ranges, then the counts.

    All displacements of a layer share one quantization per channel and one number of bins.
    """

    num_passes: ClassVar[int] = 2
    _state = ("_ranges", "_num_pixels", "_num_bins", "_wide", "_counts")

    def __init__(self, channels: int, window: Window, device: torch.device, *, bins: int | str = "sturges") -> None:
        check_bins(bins)
        self._window, self._bins = window, bins
        self._ranges = Ranges(channels, device)
        self._num_pixels = torch.zeros((), dtype=torch.int64, device=device)
        self._num_bins = 0  # as long as the ranges are not known
        self._wide = False
        self._counts: Tensor | None = None

    def observe(self, maps: Tensor) -> None:
        """Take in maps: their ranges in the first pass, their pairs in the second."""
        if self._num_bins == 0:
            self._observe_ranges(maps)
        else:
            self._observe_counts(self._table(), maps)

    def partials(self) -> list[tuple[Tensor, Reduction]]:
        """Return the ranges and the number of pixels, or the counts."""
        if self._num_bins == 0:
            return [*self._ranges.partials(), (self._num_pixels, "sum")]
        return [(self._table(), "sum")]

    def facts(self) -> Tensor:
        """Return whether there were non-finite values, and the number of pixels, after the first pass."""
        if self._num_bins:
            return no_facts(self._num_pixels.device)
        return torch.cat([self._ranges.facts(), self._num_pixels.view(1)])

    def end_pass(self, facts: Sequence[int] | None = None) -> None:
        """After the first pass, check the ranges and choose the number of bins."""
        if self._num_bins:
            return
        invalid, num_pixels = self.facts().tolist() if facts is None else facts
        self._ranges.check(invalid)
        if self._pads_with_zeros:
            self._ranges.low.clamp_(max=0)
            self._ranges.high.clamp_(min=0)
        self._num_bins = sturges_bins(num_pixels) if isinstance(self._bins, str) else self._bins
        self._wide = needs_wide_counts(num_pixels)

    def bytes_per_channel(self) -> int:
        """Return the size of the counts of a channel."""
        return len(self._window.displacements) * self._num_bins**2 * (8 if self._wide else 4)

    def keep_every(self, step: int) -> None:
        """Drop the ranges of all other channels."""
        self._ranges.keep_every(step)

    def dependence(self) -> Tensor:
        """Return S, shape (channels, *kernel_size)."""
        if self._num_bins == 0:
            raise RuntimeError("No counts yet: finish two passes before asking for the dependence.")
        counted = self._table()
        values = self._ranges.low.new_empty(len(self._ranges.low), len(counted))
        for column, counts in enumerate(counted):
            values[:, column] = nmi_from_counts(counts)
        return self._window.arrange(values)

    @property
    def _pads_with_zeros(self) -> bool:
        return self._window.padding_mode == "zeros" and any(map(any, self._window.padding))

    def _table(self) -> Tensor:
        """Return the counts; allocated when they are first needed, as other layers may take their turn before."""
        if self._counts is None:
            shape = (len(self._window.displacements), len(self._ranges.low), self._num_bins, self._num_bins)
            dtype = torch.int64 if self._wide else torch.int32
            self._counts = torch.zeros(shape, dtype=dtype, device=self._ranges.low.device)
        return self._counts

    def _observe_ranges(self, maps: Tensor) -> None:
        self._window.check_fits(maps.shape[2:])
        self._ranges.observe(maps)
        self._num_pixels += len(maps) * math.prod(self._window.padded_size(maps.shape[2:]))

    def _observe_counts(self, counts: Tensor, maps: Tensor) -> None:
        low, high = (limit.to(maps.dtype) for limit in (self._ranges.low, self._ranges.high))
        if self._pads_with_zeros:
            # Fill with the level of a zero first, then quantize the maps right into the middle.
            zeros = maps.new_zeros(1, maps.shape[1], *(1,) * self._window.num_dims)
            level = torch.empty_like(zeros, dtype=torch.uint8)
            quantize(zeros, low, high, self._num_bins, out=level)
            size = self._window.padded_size(maps.shape[2:])
            levels = level.expand(len(maps), -1, *size).contiguous()
            inside = self._window.inside(levels, maps.shape[2:])
            quantize(maps, low, high, self._num_bins, out=inside)
        else:
            levels = torch.empty(maps.shape, dtype=torch.uint8, device=maps.device)
            quantize(maps, low, high, self._num_bins, out=levels)
            levels = self._window.pad(levels)
        count_pairs_(counts, levels, self._window.displacements)
