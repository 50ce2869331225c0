"""Autocorrelation: linear correlation between the pixels of a map and their neighbours (the paper's ablation)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from spatialgrad.sgs.dependence.estimator import Ranges, Stateful, measure_in_one_piece, no_facts
from spatialgrad.sgs.dependence.window import Window, blocks, shifted_pair
from spatialgrad.torch_utils.distributed import Reduction


def autocorrelation(
    maps: Tensor,
    kernel_size: int | Sequence[int],
    *,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    padding_mode: str = "zeros",
) -> Tensor:
    """Measure the correlation of each pixel with every neighbour that a kernel sees.

    This is the absolute value of Pearson's coefficient: a strong negative correlation is a strong dependence, too.

    Args:
        maps: Input maps of a convolution, shape (batch, channels, *spatial) with 1 to 3 spatial dimensions.
        kernel_size: The convolution's kernel size.
        padding: The convolution's padding; padded pixels take part in the pairs.
        dilation: The convolution's dilation: neighbours are this many pixels apart.
        padding_mode: The convolution's padding mode.

    Returns:
        S of shape (channels, *kernel_size), 1 at the centre, in float64 where the device supports it. Channels
        without variance are NaN.

    Example:
        >>> import torch
        >>> stripes = torch.tensor([0.0, 1.0]).repeat(8).view(1, 1, 16)
        >>> autocorrelation(stripes, 3)
        tensor([[1., 1., 1.]], dtype=torch.float64)
    """
    return measure_in_one_piece(
        Autocorrelation, maps, kernel_size, padding=padding, dilation=dilation, padding_mode=padding_mode
    )


class Autocorrelation(Stateful):
    """Streaming form of `autocorrelation`: ranges in the first pass, moments about their midpoints in the second.

    Moments about the midpoint of the range do not cancel, however far from 0 the values of a channel are.
    """

    num_passes: ClassVar[int] = 2
    _state = ("_ranges", "_centring", "_moments")

    def __init__(self, channels: int, window: Window, device: torch.device) -> None:
        self._window = window
        self._ranges = Ranges(channels, device)
        self._centring = False
        self._moments: Tensor | None = None

    def observe(self, maps: Tensor) -> None:
        """Take in maps: their ranges in the first pass, their moments in the second."""
        if not self._centring:
            self._window.check_fits(maps.shape[2:])
            self._ranges.observe(maps)
            return
        moments = self._table()
        middle = (self._ranges.low / 2 + self._ranges.high / 2).view(1, -1, *(1,) * (maps.dim() - 2))
        over = [0, *range(2, maps.dim())]
        for block in blocks(maps):
            centred = self._window.pad(block).to(middle.dtype) - middle
            for row, offset in enumerate(self._window.displacements):
                p, q = shifted_pair(centred, offset)
                number = torch.full_like(self._ranges.low, p.numel() / p.shape[1])
                sums = [term.sum(over) for term in (p, q, p * p, q * q, p * q)]
                moments[row] += torch.stack([number, *sums])

    def partials(self) -> list[tuple[Tensor, Reduction]]:
        """Return the ranges, or the moments."""
        return [(self._table(), "sum")] if self._centring else self._ranges.partials()

    def facts(self) -> Tensor:
        """Return whether there were non-finite values, after the first pass."""
        return no_facts(self._ranges.low.device) if self._centring else self._ranges.facts()

    def end_pass(self, facts: Sequence[int] | None = None) -> None:
        """After the first pass, check the ranges."""
        if not self._centring:
            self._ranges.check(None if facts is None else facts[0])
            self._centring = True

    def bytes_per_channel(self) -> int:
        """Return the size of the moments of a channel."""
        return len(self._window.displacements) * 6 * self._ranges.low.element_size()

    def keep_every(self, step: int) -> None:
        """Drop the ranges of all other channels."""
        self._ranges.keep_every(step)

    def dependence(self) -> Tensor:
        """Return S, shape (channels, *kernel_size)."""
        if not self._centring:
            raise RuntimeError("No moments yet: finish two passes before asking for the dependence.")
        number, p, q, pp, qq, pq = self._table().unbind(1)
        covariance = pq * number - p * q
        variances = (pp * number - p * p) * (qq * number - q * q)
        # Rounding errors look like a small variance in a channel that has none.
        usable = variances > (pp * number * torch.finfo(pp.dtype).eps * 16) * (qq * number)
        correlation = (covariance / variances.sqrt()).abs().clamp(max=1)
        values = torch.where(usable, correlation, math.nan)
        return self._window.arrange(values.T)

    def _table(self) -> Tensor:
        """Return the moments; allocated when they are first needed, as other layers may take their turn before."""
        if self._moments is None:
            self._moments = self._ranges.low.new_zeros(len(self._window.displacements), 6, len(self._ranges.low))
        return self._moments
