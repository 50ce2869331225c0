"""Estimators: the protocol of all streaming measures of dependence, and what they share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from spatialgrad.sgs.dependence.window import Window, blocks
from spatialgrad.torch_utils.distributed import Reduction

DependenceFunction = Callable[..., Tensor]
"""``f(maps, kernel_size, *, padding, dilation, padding_mode) -> S`` of shape (channels, *kernel_size)."""


# Number of pixels up to which maps are small.
SMALL_MAP = 64


class Estimator(Protocol):
    """Sees maps `num_passes` times, in pieces, and then knows their dependence.

    After each pass, `partials` are combined over all processes and `end_pass` is called. Nothing but `end_pass`
    without `facts` waits for the device.
    """

    num_passes: ClassVar[int]

    def observe(self, maps: Tensor) -> None:
        """Take in maps of shape (batch, channels, *spatial)."""

    def partials(self) -> list[tuple[Tensor, Reduction]]:
        """Return what this pass has gathered, and how to combine each tensor over processes, in place."""

    def facts(self) -> Tensor:
        """Return what `end_pass` must know on the host: int64, one dimension."""

    def end_pass(self, facts: Sequence[int] | None = None) -> None:
        """Close the pass; raises `ValueError` if its maps cannot be used.

        Args:
            facts: The values of `facts`, if they have been fetched together with those of other estimators.
        """

    def bytes_per_channel(self) -> int:
        """Return the memory that the next pass needs for each channel."""

    def keep_every(self, step: int) -> None:
        """Go on with the channels 0, step, 2·step, … alone; only these are observed in the next pass."""

    def dependence(self) -> Tensor:
        """Return S, shape (channels, *kernel_size); NaN for channels that carry no information."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything that was gathered so far, as tensors and plain values."""

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Continue from a state."""


EstimatorFactory = Callable[[int, Window, torch.device], Estimator]
"""Builds an estimator for a number of channels, a window and a device."""


class Stateful:
    """Saves and restores the attributes listed in `_state`: tensors, plain values, None, and other stateful objects."""

    _state: ClassVar[tuple[str, ...]]

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state, as tensors and plain values."""
        return {name.lstrip("_"): _copy(getattr(self, name)) for name in self._state}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Load a state; its tensors are copied to the device."""
        for name in self._state:
            value, own = state[name.lstrip("_")], getattr(self, name)
            if isinstance(own, Stateful):
                own.load_state_dict(value, device)
            else:
                setattr(self, name, value.to(device, copy=True) if isinstance(value, Tensor) else value)


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
    num_dims = _check_maps(maps, None if isinstance(kernel_size, int) else len(kernel_size))
    window = Window.of(kernel_size, padding=padding, dilation=dilation, padding_mode=padding_mode, num_dims=num_dims)
    estimator = make_estimator(maps.shape[1], window, maps.device)
    for _ in range(estimator.num_passes):
        estimator.observe(maps)
        estimator.end_pass()
    return estimator.dependence()


class FunctionEstimator(Stateful):
    """Averages a user's function over batches, so that any measure of dependence can be used."""

    num_passes: ClassVar[int] = 1
    _state = ("_total", "_weight")

    def __init__(self, function: DependenceFunction, channels: int, window: Window, device: torch.device) -> None:
        self._function, self._window = function, window
        self._total = torch.zeros(channels, *window.kernel_size, dtype=wide_dtype(device), device=device)
        self._weight = torch.zeros(channels, dtype=self._total.dtype, device=device)

    def observe(self, maps: Tensor) -> None:
        """Add the function's result for these maps, weighted by the batch size."""
        window = self._window
        symmetric = all(before == after for before, after in window.padding)
        if not symmetric:
            # Functions take one number per dimension, so padding that differs between sides is done here.
            maps = window.pad(maps)
        result = self._function(
            maps,
            window.kernel_size,
            padding=tuple(before for before, _ in window.padding) if symmetric else (0,) * window.num_dims,
            dilation=window.dilation,
            padding_mode=window.padding_mode,
        )
        if not isinstance(result, Tensor) or result.shape != self._total.shape:
            got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise ValueError(
                f"The dependence function returned {got}; expected a tensor of shape {tuple(self._total.shape)}."
            )
        result = result.to(self._total)
        usable = result.isfinite().flatten(1).all(1)
        self._total += torch.where(_like(usable, result), result, 0.0) * len(maps)
        self._weight += usable * len(maps)

    def partials(self) -> list[tuple[Tensor, Reduction]]:
        """Return weighted sums and weights."""
        return [(self._total, "sum"), (self._weight, "sum")]

    def facts(self) -> Tensor:
        """Return nothing."""
        return no_facts(self._total.device)

    def end_pass(self, facts: Sequence[int] | None = None) -> None:
        """Do nothing: non-finite values were left out."""

    def bytes_per_channel(self) -> int:
        """Return 0: there is no next pass."""
        return 0

    def keep_every(self, step: int) -> None:
        """Do nothing: there is no next pass."""

    def dependence(self) -> Tensor:
        """Return the weighted mean; NaN (0 / 0) for channels that were never finite."""
        return self._total / _like(self._weight, self._total)


def wide_dtype(device: torch.device) -> torch.dtype:
    """Return the widest floating point dtype that a device supports."""
    return torch.float32 if device.type == "mps" else torch.float64


def no_facts(device: torch.device) -> Tensor:
    """Return the facts of a pass that has none."""
    return torch.zeros(0, dtype=torch.int64, device=device)


class Ranges(Stateful):
    """The smallest and largest value of each channel over many maps."""

    _state = ("low", "high")

    def __init__(self, channels: int, device: torch.device) -> None:
        self.low = torch.full((channels,), math.inf, dtype=wide_dtype(device), device=device)
        self.high = torch.full_like(self.low, -math.inf)

    def observe(self, maps: Tensor) -> None:
        """Extend the ranges to include maps; see `channel_ranges`."""
        low, high = channel_ranges(maps)
        torch.minimum(self.low, low.to(self.low), out=self.low)
        torch.maximum(self.high, high.to(self.high), out=self.high)

    def partials(self) -> list[tuple[Tensor, Reduction]]:
        """Return both limits and how to combine each over processes."""
        return [(self.low, "min"), (self.high, "max")]

    def facts(self) -> Tensor:
        """Return 1 if any map contained a non-finite value, or else 0: int64, shape (1,)."""
        return ((self.low == -math.inf) | (self.high == math.inf)).any().to(torch.int64).view(1)

    def check(self, fact: int | None = None) -> None:
        """Raise `ValueError` if any map contained a non-finite value.

        Args:
            fact: The value of `facts`, if it has been fetched already.
        """
        if bool(self.facts() if fact is None else fact):
            raise ValueError("the maps contain NaN or infinite values")

    def keep_every(self, step: int) -> None:
        """Drop all channels but every `step`-th one."""
        self.low, self.high = self.low[::step].clone(), self.high[::step].clone()


def channel_ranges(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and largest value of each channel.

    Args:
        maps: Shape (batch, channels, *spatial).

    Returns:
        Two tensors of shape (channels,). A channel with non-finite values gets −inf as the smallest or +inf as the
        largest value, so that a minimum or maximum over several calls or processes preserves them.
    """
    channels = maps.shape[1]
    low = maps.new_full((channels,), math.inf)
    high = maps.new_full((channels,), -math.inf)
    over = [0, *range(2, maps.dim())]
    # Of small maps, reducing over batch and pixels at once is up to 20 times slower than one after the other.
    small = maps.is_contiguous() and maps[0, 0].numel() <= SMALL_MAP
    for block in blocks(maps):
        if small:
            samples = block.flatten(1)
            smallest, largest = (values.view(channels, -1) for values in (samples.amin(0), samples.amax(0)))
            low = torch.minimum(low, smallest.amin(1))
            high = torch.maximum(high, largest.amax(1))
        else:
            low = torch.minimum(low, block.amin(over))
            high = torch.maximum(high, block.amax(over))
    invalid = low.isnan() | high.isnan()
    return low.masked_fill(invalid, -math.inf), high.masked_fill(invalid, math.inf)


def _check_maps(maps: Tensor, kernel_dims: int | None) -> int:
    """Check that maps have shape (batch, channels, *spatial) and return the number of spatial dimensions."""
    if not maps.is_floating_point():
        raise TypeError(f"Expected floating point maps, got {maps.dtype}; call .float() on them first.")
    num_dims = maps.dim() - 2
    if num_dims not in (1, 2, 3) or (kernel_dims is not None and kernel_dims != num_dims):
        wanted = kernel_dims or "1, 2 or 3"
        raise ValueError(
            f"Expected maps of shape (batch, channels, ...) with {wanted} spatial dimensions, "
            f"got shape {tuple(maps.shape)}."
        )
    if maps.numel() == 0:
        raise ValueError(f"The maps are empty: shape {tuple(maps.shape)}.")
    return num_dims


def _like(per_channel: Tensor, values: Tensor) -> Tensor:
    return per_channel.view(-1, *(1,) * (values.dim() - 1))


def _copy(value: Any) -> Any:
    if isinstance(value, Stateful):
        return value.state_dict()
    return value.clone() if isinstance(value, Tensor) else value
