"""Mutual information of distant pairs alone: the paper's ImageNet variant (`drop_near`), as its authors implement it.

Few pairs may remain of a small or sparse map, and then each bin matters. So every channel and displacement has its own
number of bins and its own ranges, of the pixels and of their neighbours, from the pairs that take part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from spatialgrad.sgs.dependence.estimator import Ranges, Stateful, no_facts, wide_dtype
from spatialgrad.sgs.dependence.histogram import (
    bin_grid,
    check_bins,
    count_pairs_,
    needs_wide_counts,
    nmi_from_counts,
    sturges_bins,
)
from spatialgrad.sgs.dependence.window import Window, blocks, shifted_pair
from spatialgrad.torch_utils.distributed import Reduction


class DistantMutualInformation(Stateful):
    """Normalized mutual information without pairs that have an exact zero or fall into the same bin.

    The first pass collects the ranges and numbers of the pairs without a zero, the second pass counts them.
    """

    num_passes: ClassVar[int] = 2
    _state = ("_all", "_low", "_high", "_num_pairs", "_num_bins", "_levels", "_wide", "_counts")

    def __init__(self, channels: int, window: Window, device: torch.device, *, bins: int | str = "sturges") -> None:
        check_bins(bins)
        self._window, self._bins = window, bins
        shape = (len(window.displacements), channels)
        # Values whose neighbours are all 0 take part in no pair, but must be finite, too.
        self._all = Ranges(channels, device)
        self._low = torch.full((2, *shape), math.inf, dtype=wide_dtype(device), device=device)
        self._high = torch.full_like(self._low, -math.inf)
        self._num_pairs = torch.zeros(shape, dtype=torch.int64, device=device)
        self._num_bins = torch.empty(0)
        self._levels = 0  # as long as the ranges are not known
        self._wide = False
        self._counts: Tensor | None = None

    def observe(self, maps: Tensor) -> None:
        """Take in maps: the ranges of their pairs in the first pass, their pairs in the second."""
        if self._levels == 0:
            self._window.check_fits(maps.shape[2:])
            self._all.observe(maps)
        for block in blocks(maps):
            # Padding with zeros adds only pairs that do not take part.
            padded = block if self._window.padding_mode == "zeros" else self._window.pad(block)
            # Adding infinity to what is dropped is several times as fast as masking every displacement.
            excluded = torch.zeros_like(padded).masked_fill_(padded == 0, math.inf)
            for row, offset in enumerate(self._window.displacements):
                pair, exclusion = shifted_pair(padded, offset), shifted_pair(excluded, offset)
                if pair[0].numel() == 0:
                    continue
                if self._levels == 0:
                    self._observe_ranges(row, pair, exclusion[0] + exclusion[1])
                else:
                    self._observe_counts(self._table(), row, pair, exclusion)

    def partials(self) -> list[tuple[Tensor, Reduction]]:
        """Return the ranges and numbers of pairs, or the counts."""
        if self._levels == 0:
            return [*self._all.partials(), (self._low, "min"), (self._high, "max"), (self._num_pairs, "sum")]
        return [(self._table(), "sum")]

    def facts(self) -> Tensor:
        """Return whether there were non-finite values, and all numbers of pairs, after the first pass."""
        if self._levels:
            return no_facts(self._low.device)
        return torch.cat([self._all.facts(), self._num_pairs.flatten()])

    def end_pass(self, facts: Sequence[int] | None = None) -> None:
        """After the first pass, check the values and choose the bins."""
        if self._levels:
            return
        invalid, *numbers = self.facts().tolist() if facts is None else facts
        self._all.check(invalid)
        bins = [sturges_bins(number) if isinstance(self._bins, str) else self._bins for number in numbers]
        self._num_bins = torch.tensor(bins, dtype=self._low.dtype, device=self._low.device).view_as(self._num_pairs)
        # The last level is for exact zeros.
        self._levels = max(bins, default=1) + 1
        self._wide = needs_wide_counts(max(numbers, default=0))

    def bytes_per_channel(self) -> int:
        """Return the size of the counts of a channel."""
        return len(self._window.displacements) * self._levels**2 * (8 if self._wide else 4)

    def keep_every(self, step: int) -> None:
        """Drop the ranges and numbers of all other channels."""
        self._all.keep_every(step)
        for name in ("_low", "_high", "_num_pairs", "_num_bins"):
            setattr(self, name, getattr(self, name)[..., ::step].clone())

    def dependence(self) -> Tensor:
        """Return S, shape (channels, *kernel_size)."""
        if self._levels == 0:
            raise RuntimeError("No counts yet: finish two passes before asking for the dependence.")
        counted = self._table()
        values = self._low.new_empty(self._num_pairs.shape[1], len(counted))
        for column, counts in enumerate(counted):
            pairs = counts[:, :-1, :-1].clone()
            pairs.diagonal(dim1=1, dim2=2).zero_()
            values[:, column] = nmi_from_counts(pairs)
        # Where no pair remains, a neighbour tells nothing: 0. If none remains anywhere, nothing can be measured: NaN.
        nothing = values.isnan()
        return self._window.arrange(torch.where(nothing & ~nothing.all(), 0.0, values))

    def _table(self) -> Tensor:
        """Return the counts; allocated when they are first needed, as other layers may take their turn before."""
        if self._counts is None:
            dtype = torch.int64 if self._wide else torch.int32
            shape = (*self._num_pairs.shape, self._levels, self._levels)
            self._counts = torch.zeros(shape, dtype=dtype, device=self._low.device)
        return self._counts

    def _observe_ranges(self, row: int, pair: tuple[Tensor, Tensor], exclusion: Tensor) -> None:
        over = [0, *range(2, exclusion.dim())]
        self._num_pairs[row] += (exclusion == 0).sum(over)
        for side, values in enumerate(pair):
            low = (values + exclusion).amin(over).to(self._low)
            high = (values - exclusion).amax(over).to(self._high)
            self._low[side, row] = torch.minimum(self._low[side, row], low)
            self._high[side, row] = torch.maximum(self._high[side, row], high)

    def _observe_counts(
        self, counts: Tensor, row: int, pair: tuple[Tensor, Tensor], exclusion: tuple[Tensor, Tensor]
    ) -> None:
        shape = (1, -1, *(1,) * self._window.num_dims)
        dtype = torch.promote_types(pair[0].dtype, torch.float32)
        bins = self._num_bins[row].to(dtype)
        levels = torch.empty(*pair[0].shape[:2], 2, *pair[0].shape[2:], dtype=torch.uint8, device=counts.device)
        for side, values in enumerate(pair):
            floor, scale = bin_grid(self._low[side, row].to(dtype), self._high[side, row].to(dtype), bins)
            # Conversion to uint8 truncates, which is the floor of non-negative values.
            level = torch.sub(values, floor.view(shape)).mul_(scale.view(shape)).clamp_(min=0)
            torch.minimum(level, (bins - 1).view(shape), out=level)
            levels[:, :, side].copy_(level.add_(exclusion[side]).clamp_(max=counts.shape[-1] - 1))
        # Pixels and neighbours have levels of their own: two rows of an image, whose displacement is (1, 0).
        count_pairs_(counts[row : row + 1], levels.flatten(3), [(1, 0)])
