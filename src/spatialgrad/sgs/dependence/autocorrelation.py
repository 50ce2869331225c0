"""Autocorrelation: linear correlation between the pixels of a map and their neighbours (the paper's ablation)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from spatialgrad.sgs.dependence.estimator import Estimator, measure_in_one_piece
from spatialgrad.sgs.dependence.window import blocks, shifted_pair


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
    Arguments as those of `normalized_mutual_information`.

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


class Autocorrelation(Estimator):
    """Streaming form of `autocorrelation`: moments about the midpoint of each channel's range.

    They do not cancel, however far from 0 the values of a channel are.
    """

    def _begin_counting(self) -> None:
        self.counts = self.low.new_zeros(len(self.window.displacements), 6, self.channels)

    def _count(self, maps: Tensor) -> None:
        middle = (self.low / 2 + self.high / 2).view(1, -1, *(1,) * (maps.dim() - 2))
        over = [0, *range(2, maps.dim())]
        for block in blocks(maps):
            centred = self.window.pad(block).to(middle.dtype) - middle
            for row, offset in enumerate(self.window.displacements):
                p, q = shifted_pair(centred, offset)
                number = torch.full_like(self.low, p.numel() / p.shape[1])
                sums = [term.sum(over) for term in (p, q, p * p, q * q, p * q)]
                self.counts[row] += torch.stack([number, *sums])

    def dependence(self) -> Tensor:
        """Return S, shape (channels, *kernel_size)."""
        number, p, q, pp, qq, pq = self.counts.unbind(1)
        covariance = pq * number - p * q
        variances = (pp * number - p * p) * (qq * number - q * q)
        # Rounding errors look like a small variance in a channel that has none.
        usable = variances > (pp * number * torch.finfo(pp.dtype).eps * 16) * (qq * number)
        correlation = (covariance / variances.sqrt()).abs().clamp(max=1)
        values = torch.where(usable, correlation, math.nan)
        return self.window.arrange(values.T)
