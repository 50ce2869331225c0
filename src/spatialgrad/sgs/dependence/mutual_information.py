"""Normalized mutual information between the pixels of a map and their neighbours (the paper's measure)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from spatialgrad.sgs.dependence.distant_pairs import DistantMutualInformation
from spatialgrad.sgs.dependence.estimator import Estimator, EstimatorFactory, measure_in_one_piece
from spatialgrad.sgs.dependence.histogram import (
    check_bins,
    count_dtype,
    count_pairs_,
    nmi_from_counts,
    quantize,
    sturges_bins,
)
from spatialgrad.sgs.dependence.window import Window, blocks


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
    check_bins(bins)
    make = mutual_information_factory(bins=bins, drop_near=drop_near)
    return measure_in_one_piece(make, maps, kernel_size, padding=padding, dilation=dilation, padding_mode=padding_mode)


def mutual_information_factory(*, bins: int | str, drop_near: bool) -> EstimatorFactory:
    """Return what builds the estimators of `normalized_mutual_information`; arguments as there."""
    return partial(DistantMutualInformation if drop_near else MutualInformation, bins=bins)


class MutualInformation(Estimator):
    """Streaming form of `normalized_mutual_information` without `drop_near`.

    All displacements of a layer share one quantization per channel and one number of bins.
    """

    def __init__(self, channels: int, window: Window, device: torch.device, *, bins: int | str = "sturges") -> None:
        super().__init__(channels, window, device)
        self._bins = bins

    def _begin_counting(self) -> None:
        if self.window.padding_mode == "zeros" and any(map(any, self.window.padding)):
            self.low.clamp_(max=0)
            self.high.clamp_(min=0)
        bins = sturges_bins(self.num_pixels) if isinstance(self._bins, str) else self._bins
        shape = (len(self.window.displacements), self.channels, bins, bins)
        self.counts = torch.zeros(shape, dtype=count_dtype(self.num_pixels), device=self.low.device)

    def _count(self, maps: Tensor) -> None:
        low, high = (limit.to(maps.dtype) for limit in (self.low, self.high))
        window, bins = self.window, self.counts.shape[-1]
        # Padding with the level of a zero takes less than quantizing padded maps.
        zero = quantize(maps.new_zeros(1, maps.shape[1], *(1,) * window.num_dims), low, high, bins).byte()
        levels = zero.expand(*maps.shape[:2], *window.padded_size(maps.shape[2:])).contiguous()
        inside = levels
        if window.padding_mode == "zeros":
            inside = window.inside(levels, maps.shape[2:])
        else:
            maps = window.pad(maps)
        for part, block in zip(blocks(inside), blocks(maps), strict=True):
            part.copy_(quantize(block, low, high, bins))
        count_pairs_(self.counts, levels, window.displacements)

    def dependence(self) -> Tensor:
        """Return S, shape (channels, *kernel_size)."""
        values = self.low.new_empty(self.channels, len(self.counts))
        for column, counts in enumerate(self.counts):
            values[:, column] = nmi_from_counts(counts)
        return self.window.arrange(values)
