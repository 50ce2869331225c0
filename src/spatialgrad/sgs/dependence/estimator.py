"""Estimators: streaming measures of dependence, which see maps in pieces and in one or two passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spatialgrad.sgs.dependence.window import Window
from spatialgrad.utils.distributed import Reduction

FEW_CHANNELS = 32
"""Reductions over the pixels of channels_last maps with fewer channels take longer than a copy in another layout."""

DependenceFunction = Callable[..., Tensor]
"""``f(maps, kernel_size, *, padding, dilation, padding_mode) -> S`` of shape (channels, *kernel_size)."""


class Estimator:
    """Sees maps in pieces and in passes, and then knows their dependence: ranges of channels first, then counts.

    After each pass, `partials` and `num_pixels` are combined over all processes, and `end_pass` is called. Nothing in
    here waits for the device.

    Args:
        channels: Number of channels of the maps.
        window: The neighbours of each pixel.
        device: The device of the maps.

    Attributes:
        num_pixels: Pixels per channel in the first pass, padding included.
        invalid: Not 0 as soon as any map contained a NaN or infinite value.
        low: The smallest value of each channel.
        high: The largest value of each channel.
        counts: What the second pass sums up, over maps and over processes.
    """

    num_passes = 2

    def __init__(self, channels: int, window: Window, device: torch.device) -> None:
        self.channels, self.window = channels, window
        self.num_pixels = 0
        self.invalid = torch.zeros((), dtype=torch.int32, device=device)
        self.low = torch.full((channels,), math.inf, dtype=wide_dtype(device), device=device)
        self.high = torch.full_like(self.low, -math.inf)
        self.counts = torch.empty(0)
        self._counting = False

    def observe(self, maps: Tensor) -> None:
        """Take in maps of shape (batch, channels, *spatial)."""
        if self._counting:
            self._note_invalid(maps)
            self._count(maps)
            return
        self.num_pixels += len(maps) * math.prod(self.window.padded_size(maps.shape[2:]))
        pixels = maps.flatten(2)
        if self.channels < FEW_CHANNELS:
            pixels = pixels.contiguous()
        # Pixels first, then samples: over both at once, small maps take up to 4 times as long.
        low, high = pixels.amin(2).amin(0).to(self.low), pixels.amax(2).amax(0).to(self.high)
        self.low, self.high = torch.minimum(self.low, low), torch.maximum(self.high, high)
        # A minimum over processes need not preserve NaN.
        self._note_invalid(torch.stack([low, high]))

    def partials(self) -> list[tuple[Tensor, Reduction]]:
        """Return what this pass has gathered, and how to combine each tensor over processes, in place."""
        gathered: list[tuple[Tensor, Reduction]] = [(self.low, "min"), (self.high, "max")]
        return [(self.invalid, "max"), *([(self.counts, "sum")] if self._counting else gathered)]

    def end_pass(self) -> None:
        """Close a pass."""
        if not self._counting:
            self._begin_counting()
            self._counting = True

    def dependence(self) -> Tensor:
        """Return S, shape (channels, *kernel_size); NaN for channels that carry no information."""
        raise NotImplementedError

    def _begin_counting(self) -> None:
        """Allocate the counts; the ranges are those of all processes."""

    def _count(self, maps: Tensor) -> None:
        """Count the pairs of some maps."""

    def _note_invalid(self, values: Tensor) -> None:
        """Remember if any of some values is not finite."""
        # Not aminmax, which takes ten times as long for channels_last maps.
        self.invalid.logical_or_(~(values.amin().isfinite() & values.amax().isfinite()))


EstimatorFactory = Callable[[int, Window, torch.device], Estimator]
"""Builds an estimator for a number of channels, a window and a device."""


class FunctionEstimator(Estimator):
    """Averages a user's function over batches, so that any measure of dependence can be used."""

    num_passes = 1

    def __init__(self, function: DependenceFunction, channels: int, window: Window, device: torch.device) -> None:
        super().__init__(channels, window, device)
        self._function = function
        self._total = torch.zeros(channels, *window.kernel_size, dtype=wide_dtype(device), device=device)
        self._weight = self._total.new_zeros(channels, *(1,) * window.num_dims)

    def observe(self, maps: Tensor) -> None:
        """Add the function's result for these maps, weighted by the batch size."""
        self._note_invalid(maps)
        window, padding = self.window, tuple(before for before, _ in self.window.padding)
        if any(before != after for before, after in window.padding):
            # Functions take one number per dimension, so padding that differs between sides is done here.
            maps, padding = window.pad(maps), (0,) * window.num_dims
        result = self._function(
            maps, window.kernel_size, padding=padding, dilation=window.dilation, padding_mode=window.padding_mode
        )
        if not isinstance(result, Tensor) or result.shape != self._total.shape:
            got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise ValueError(
                f"The dependence function returned {got}; expected a tensor of shape {tuple(self._total.shape)}."
            )
        result = result.to(self._total)
        usable = result.isfinite().flatten(1).all(1).view_as(self._weight)
        self._total += torch.where(usable, result, 0.0) * len(maps)
        self._weight += usable * len(maps)

    def partials(self) -> list[tuple[Tensor, Reduction]]:
        """Return weighted sums and weights."""
        return [(self.invalid, "max"), (self._total, "sum"), (self._weight, "sum")]

    def dependence(self) -> Tensor:
        """Return the weighted mean; NaN (0 / 0) for channels without a finite result."""
        return self._total / self._weight


def measure_in_one_piece(
    make_estimator: EstimatorFactory,
    maps: Tensor,
    kernel_size: int | Sequence[int],
    *,
    padding: int | str | Sequence[int],
    dilation: int | Sequence[int],
    padding_mode: str,
) -> Tensor:
    """Return the dependence of maps that are available all at once; arguments as torch's convolutions take them."""
    if not maps.is_floating_point():
        raise TypeError(f"Expected floating point maps, got {maps.dtype}; call .float() on them first.")
    if maps.dim() < 3 or maps.numel() == 0:
        raise ValueError(f"Expected maps of shape (batch, channels, *spatial), got shape {tuple(maps.shape)}.")
    window = Window.of(
        kernel_size, padding=padding, dilation=dilation, padding_mode=padding_mode, num_dims=maps.dim() - 2
    )
    if not window.fits(maps.shape[2:]):
        raise ValueError(f"Maps of size {tuple(maps.shape[2:])} are too small for {window}.")
    estimator = make_estimator(maps.shape[1], window, maps.device)
    for _ in range(estimator.num_passes):
        estimator.observe(maps)
        estimator.end_pass()
    if estimator.invalid:
        raise ValueError("The maps contain NaN or infinite values.")
    return estimator.dependence()


def wide_dtype(device: torch.device) -> torch.dtype:
    """Return the widest floating point dtype that a device supports."""
    return torch.float32 if device.type == "mps" else torch.float64
