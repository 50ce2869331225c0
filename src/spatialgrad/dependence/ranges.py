"""The first pass of every measure: the range of each channel, and with it whether the maps can be used at all."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spatialgrad.dependence.blocks import blocks
from spatialgrad.dependence.estimator import Reduction, wide_dtype


class Ranges:
    """Smallest and largest value of each channel over many maps."""

    def __init__(self, channels: int, device: torch.device) -> None:
        self.low = torch.full((channels,), math.inf, dtype=wide_dtype(device), device=device)
        self.high = torch.full_like(self.low, -math.inf)

    def observe(self, maps: Tensor, *, skip_zeros: bool = False) -> None:
        """Widen the ranges to take in maps; see `channel_ranges`."""
        low, high = channel_ranges(maps, skip_zeros=skip_zeros)
        torch.minimum(self.low, low.to(self.low), out=self.low)
        torch.maximum(self.high, high.to(self.high), out=self.high)

    def partials(self) -> list[tuple[Tensor, Reduction]]:
        """Both limits, each with the way to combine it over processes."""
        return [(self.low, "min"), (self.high, "max")]

    def check(self) -> None:
        """Raise if any map held a value that is not finite."""
        if bool(((self.low == -math.inf) | (self.high == math.inf)).any()):
            raise ValueError("the maps hold NaN or infinite values")


def channel_ranges(maps: Tensor, *, skip_zeros: bool = False) -> tuple[Tensor, Tensor]:
    """Smallest and largest value of each channel.

    Args:
        maps: Shape (batch, channels, *spatial).
        skip_zeros: Leave out values that are exactly 0.

    Returns:
        Two tensors of shape (channels,). Values that are not finite show as −inf below and +inf above, so that a
        minimum or maximum over several calls or processes cannot lose them. A channel with nothing to look at has
        +inf below and −inf above.
    """
    channels = maps.shape[1]
    low = maps.new_full((channels,), math.inf)
    high = maps.new_full((channels,), -math.inf)
    over = [0, *range(2, maps.dim())]
    for block in blocks(maps):
        if skip_zeros:
            zero = block == 0
            low = torch.minimum(low, block.masked_fill(zero, math.inf).amin(over))
            high = torch.maximum(high, block.masked_fill(zero, -math.inf).amax(over))
        else:
            low = torch.minimum(low, block.amin(over))
            high = torch.maximum(high, block.amax(over))
    invalid = low.isnan() | high.isnan()
    return low.masked_fill(invalid, -math.inf), high.masked_fill(invalid, math.inf)
