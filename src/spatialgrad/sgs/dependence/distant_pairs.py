"""Mutual information of distant pairs alone: the paper's ImageNet variant (`drop_near`), as its authors implement it.

Few pairs may remain of a small or sparse map, and then each bin matters. So every channel and displacement has its own
number of bins and its own ranges, of the pixels and of their neighbours, from the pairs that take part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from spatialgrad.sgs.dependence.estimator import Estimator
from spatialgrad.sgs.dependence.histogram import (
    bin_grid,
    count_dtype,
    count_pairs_,
    nmi_from_counts,
    sturges_bins,
)
from spatialgrad.sgs.dependence.window import Window, blocks, shifted_pair
from spatialgrad.utils.distributed import Reduction


class DistantMutualInformation(Estimator):
    """Normalized mutual information without pairs that have an exact zero or fall into the same bin.

    The first pass collects the ranges and numbers of the pairs without a zero, the second pass counts them.
    """

    def __init__(self, channels: int, window: Window, device: torch.device, *, bins: int | str = "sturges") -> None:
        super().__init__(channels, window, device)
        self._bins = bins
        shape = (len(window.displacements), channels)
        # Of the pixels and of their neighbours, in the pairs that take part.
        self._pair_low = torch.full((2, *shape), math.inf, dtype=self.low.dtype, device=device)
        self._pair_high = torch.full_like(self._pair_low, -math.inf)
        self._num_pairs = torch.zeros(shape, dtype=torch.int64, device=device)
        self._num_bins = torch.empty(0)

    def observe(self, maps: Tensor) -> None:
        """Take in maps: the ranges of their pairs in the first pass, their pairs in the second."""
        super().observe(maps)
        for row, pair, exclusion in () if self._counting else self._pairs(maps):
            excluded = exclusion[0] + exclusion[1]
            over = [0, *range(2, excluded.dim())]
            self._num_pairs[row] += (excluded == 0).sum(over)
            for side, values in enumerate(pair):
                low = (values + excluded).amin(over).to(self._pair_low)
                high = (values - excluded).amax(over).to(self._pair_high)
                self._pair_low[side, row] = torch.minimum(self._pair_low[side, row], low)
                self._pair_high[side, row] = torch.maximum(self._pair_high[side, row], high)

    def partials(self) -> list[tuple[Tensor, Reduction]]:
        """Return the ranges and numbers of pairs, or the counts."""
        own: list[tuple[Tensor, Reduction]] = [
            (self._pair_low, "min"),
            (self._pair_high, "max"),
            (self._num_pairs, "sum"),
        ]
        return super().partials() + ([] if self._counting else own)

    def _begin_counting(self) -> None:
        if isinstance(self._bins, str):
            largest = sturges_bins(self.num_pixels)
            # Sturges' rule for every number of pairs, without waiting for the device.
            self._num_bins = 1 + self._num_pairs.clamp(min=2).to(self.low.dtype).log2().ceil()
        else:
            largest = self._bins
            self._num_bins = torch.full_like(self._num_pairs, largest, dtype=self.low.dtype)
        # The last level is for exact zeros.
        shape = (*self._num_pairs.shape, largest + 1, largest + 1)
        self.counts = torch.zeros(shape, dtype=count_dtype(self.num_pixels), device=self.low.device)

    def _count(self, maps: Tensor) -> None:
        shape = (1, -1, *(1,) * self.window.num_dims)
        zero_level = self.counts.shape[-1] - 1
        for row, pair, exclusion in self._pairs(maps):
            dtype = torch.promote_types(pair[0].dtype, torch.float32)
            bins = self._num_bins[row].to(dtype)
            levels = torch.empty(*pair[0].shape[:2], 2, *pair[0].shape[2:], dtype=torch.uint8, device=maps.device)
            for side, values in enumerate(pair):
                low, high = (limit[side, row].to(dtype) for limit in (self._pair_low, self._pair_high))
                floor, scale = bin_grid(low, high, bins)
                # Conversion to uint8 truncates, which is the floor of non-negative values.
                level = torch.sub(values, floor.view(shape)).mul_(scale.view(shape)).clamp_(min=0)
                torch.minimum(level, (bins - 1).view(shape), out=level)
                levels[:, :, side].copy_(level.add_(exclusion[side]).clamp_(max=zero_level))
            # Pixels and neighbours have levels of their own: two rows of an image, whose displacement is (1, 0).
            count_pairs_(self.counts[row : row + 1], levels.flatten(3), [(1, 0)])

    def _pairs(self, maps: Tensor) -> Iterator[tuple[int, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]:
        """Yield for every displacement the pixels, their neighbours, and infinity for both where they are 0."""
        for block in blocks(maps):
            # Padding with zeros adds only pairs that do not take part.
            padded = block if self.window.padding_mode == "zeros" else self.window.pad(block)
            # Adding infinity to what is dropped is several times as fast as masking every displacement.
            excluded = torch.zeros_like(padded).masked_fill_(padded == 0, math.inf)
            for row, offset in enumerate(self.window.displacements):
                pair = shifted_pair(padded, offset)
                if pair[0].numel():
                    yield row, pair, shifted_pair(excluded, offset)

    def dependence(self) -> Tensor:
        """Return S, shape (channels, *kernel_size)."""
        values = self.low.new_empty(self.channels, len(self.counts))
        for column, counts in enumerate(self.counts):
            pairs = counts[:, :-1, :-1].clone()
            pairs.diagonal(dim1=1, dim2=2).zero_()
            values[:, column] = nmi_from_counts(pairs)
        # Where no pair remains, a neighbour tells nothing: 0. If none remains anywhere, nothing can be measured: NaN.
        nothing = values.isnan()
        return self.window.arrange(torch.where(nothing & ~nothing.all(), 0.0, values))
