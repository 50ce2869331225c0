"""Windows: the neighbours that a kernel sees, how maps are padded, and how results are laid out."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

PADDING_MODES = ("zeros", "reflect", "replicate", "circular")

BLOCK = 1 << 20
"""Number of elements that are processed at a time."""

Offset = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Window:
    """The geometry of a kernel, independent of its weights and of the stride."""

    kernel_size: tuple[int, ...]
    """Kernel size per spatial dimension."""
    padding: tuple[tuple[int, int], ...]
    """Pixels added before and after, per spatial dimension."""
    dilation: tuple[int, ...]
    """Distance between neighbouring kernel elements, per spatial dimension."""
    padding_mode: str = "zeros"
    """One of torch's padding modes for convolutions."""

    def __post_init__(self) -> None:
        if len(self.kernel_size) not in (1, 2, 3):
            raise ValueError(f"Invalid kernel_size: {self.kernel_size}; maps have 1 to 3 spatial dimensions.")
        if min(self.kernel_size) < 1 or min(self.dilation) < 1:
            raise ValueError(
                f"Invalid kernel_size {self.kernel_size} or dilation {self.dilation}: each must be at least 1."
            )
        if min(itertools.chain.from_iterable(self.padding)) < 0:
            raise ValueError(f"Invalid padding: {self.padding}; it must not be negative.")
        if self.padding_mode not in PADDING_MODES:
            raise ValueError(f"Invalid padding_mode: {self.padding_mode!r}; choose from {PADDING_MODES}.")

    @classmethod
    def of(
        cls,
        kernel_size: int | Sequence[int],
        *,
        padding: int | str | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        padding_mode: str = "zeros",
        num_dims: int | None = None,
    ) -> Window:
        """Build a window from arguments as torch's convolutions take them.

        Args:
            kernel_size: One side for all dimensions, or one per dimension.
            padding: As in `torch.nn.Conv2d`, ``"same"`` and ``"valid"`` included.
            dilation: As in `torch.nn.Conv2d`.
            padding_mode: As in `torch.nn.Conv2d`.
            num_dims: Number of spatial dimensions; needed only when `kernel_size` is a single number.
        """
        if isinstance(kernel_size, int):
            if num_dims is None:
                raise ValueError(f"kernel_size={kernel_size} leaves the number of dimensions open; pass a tuple.")
            kernel_size = (kernel_size,) * num_dims
        sides = tuple(int(side) for side in kernel_size)
        if num_dims is not None and len(sides) != num_dims:
            raise ValueError(
                f"kernel_size {sides} has {len(sides)} sides, but the maps have {num_dims} spatial dimensions."
            )
        steps = _spread(dilation, len(sides), "dilation")
        if padding == "valid":
            pads: tuple[tuple[int, int], ...] = ((0, 0),) * len(sides)
        elif padding == "same":
            totals = [step * (side - 1) for side, step in zip(sides, steps, strict=True)]
            # torch adds an odd pixel at the end
            pads = tuple((total // 2, total - total // 2) for total in totals)
        elif isinstance(padding, str):
            raise ValueError(f"Invalid padding: {padding!r}; choose a number, 'same' or 'valid'.")
        else:
            pads = tuple((pad, pad) for pad in _spread(padding, len(sides), "padding"))
        return cls(kernel_size=sides, padding=pads, dilation=steps, padding_mode=padding_mode)

    @classmethod
    def of_convolution(cls, conv: nn.Module) -> Window:
        """Return the window of a `torch.nn.Conv1d`, `Conv2d` or `Conv3d`."""
        if not isinstance(conv, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            raise TypeError(f"Expected a Conv1d, Conv2d or Conv3d, got {type(conv).__name__}.")
        return cls.of(conv.kernel_size, padding=conv.padding, dilation=conv.dilation, padding_mode=conv.padding_mode)

    @property
    def num_dims(self) -> int:
        """Number of spatial dimensions."""
        return len(self.kernel_size)

    @cached_property
    def positions(self) -> tuple[tuple[Offset, ...], ...]:
        """For each kernel position, in row-major order, the displacements that represent it.

        An odd side has a centre, and every position one displacement. An even side has none: its positions lie
        halfway between two displacements, and both count, so that no corner of the kernel is preferred.
        """
        per_axis = []
        for side, step in zip(self.kernel_size, self.dilation, strict=True):
            twice = [step * (2 * index - (side - 1)) for index in range(side)]
            per_axis.append([(t // 2,) if t % 2 == 0 else (t // 2, t // 2 + 1) for t in twice])
        return tuple(tuple(itertools.product(*axes)) for axes in itertools.product(*per_axis))

    @cached_property
    def displacements(self) -> tuple[Offset, ...]:
        """The displacements to measure: only one of (i, j) and (−i, −j), and not the centre."""
        found = {_canonical(offset) for offsets in self.positions for offset in offsets}
        return tuple(sorted(offset for offset in found if any(offset)))

    def arrange(self, values: Tensor) -> Tensor:
        """Lay out one value per displacement over the kernel; the centre is 1.

        Args:
            values: Shape (channels, len(displacements)).

        Returns:
            Shape (channels, *kernel_size). A NaN at any displacement makes its whole channel NaN.
        """
        with_centre = torch.cat([values, values.new_ones(len(values), 1)], dim=1)
        return (with_centre @ _layout(self, values.dtype, values.device)).view(len(values), *self.kernel_size)

    def padded_size(self, size: Sequence[int]) -> tuple[int, ...]:
        """Return the spatial size of a map after padding."""
        return tuple(side + sum(pad) for side, pad in zip(size, self.padding, strict=True))

    def fits(self, size: Sequence[int]) -> bool:
        """Return whether maps of this spatial size have a pair of pixels for every displacement."""
        return all(reach < side for reach, side in zip(self._reach, self.padded_size(size), strict=True))

    def check_fits(self, size: Sequence[int]) -> None:
        """Raise `ValueError` unless maps of this spatial size have a pair of pixels for every displacement."""
        if not self.fits(size):
            raise ValueError(
                f"Maps of size {tuple(size)} (padded: {self.padded_size(size)}) are smaller than the displacements of "
                f"a kernel {self.kernel_size} with dilation {self.dilation}, which reach {self._reach} pixels."
            )

    @cached_property
    def _reach(self) -> tuple[int, ...]:
        """The largest displacement per spatial dimension."""
        return tuple(max((abs(o[axis]) for o in self.displacements), default=0) for axis in range(self.num_dims))

    def inside(self, padded: Tensor, size: Sequence[int]) -> Tensor:
        """Return the part of padded maps that holds the maps themselves, as a view."""
        inner = [slice(pad[0], pad[0] + side) for pad, side in zip(self.padding, size, strict=True)]
        return padded[(slice(None), slice(None), *inner)]

    def pad(self, maps: Tensor) -> Tensor:
        """Pad maps of shape (batch, channels, *spatial) as the convolution does, for any dtype."""
        if not any(itertools.chain.from_iterable(self.padding)):
            return maps
        size = maps.shape[2:]
        if self.padding_mode == "zeros":
            padded = maps.new_zeros(*maps.shape[:2], *self.padded_size(size))
            self.inside(padded, size).copy_(maps)
            return padded
        for axis, (pad, side) in enumerate(zip(self.padding, size, strict=True)):
            if self.padding_mode == "reflect" and max(pad) >= side:
                raise ValueError(f"Reflection padding of {pad} needs maps larger than {tuple(size)}.")
            if any(pad):
                index = _border_index(side, pad, self.padding_mode, maps.device)
                maps = maps.index_select(2 + axis, index)
        return maps


def shifted_pair(maps: Tensor, offset: Offset) -> tuple[Tensor, Tensor]:
    """Return views of all pixels that have a neighbour at `offset`, and of those neighbours; possibly empty."""
    everything = [slice(None)] * (maps.dim() - len(offset))
    here, there = list(everything), list(everything)
    for side, step in zip(maps.shape[-len(offset) :], offset, strict=True):
        # Not below 0: a negative end would count from the other side.
        here.append(slice(max(0, -step), max(0, side - max(0, step))))
        there.append(slice(max(0, step), max(0, side - max(0, -step))))
    return maps[tuple(here)], maps[tuple(there)]


def blocks(maps: Tensor, size: int | None = None) -> Iterator[Tensor]:
    """Split a batch along its first dimension into blocks of about `size` elements."""
    if size is None:
        # A CPU's cache holds a small block; an accelerator wants few large kernels.
        size = BLOCK if maps.device.type == "cpu" else 64 * BLOCK
    per_sample = max(1, maps[0].numel()) if len(maps) else 1
    return iter(torch.split(maps, max(1, size // per_sample)))


@functools.lru_cache(maxsize=256)
def _layout(window: Window, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the matrix that lays one value per displacement, and the centre's, out over the kernel positions."""
    row = {offset: index for index, offset in enumerate(window.displacements)}
    row[(0,) * window.num_dims] = len(window.displacements)
    weights = torch.zeros(len(row), len(window.positions), dtype=dtype, device="cpu")
    for column, offsets in enumerate(window.positions):
        for offset in offsets:
            weights[row[_canonical(offset)], column] += 1 / len(offsets)
    return weights.to(device)


def _canonical(offset: Offset) -> Offset:
    """Return the forward one of an offset and its mirror image."""
    return max(offset, tuple(-step for step in offset))


def _border_index(side: int, pad: tuple[int, int], mode: str, device: torch.device) -> Tensor:
    index = torch.arange(-pad[0], side + pad[1], device=device)
    if mode == "replicate":
        return index.clamp_(0, side - 1)
    if mode == "circular":
        return index.remainder_(side)
    index = index.abs()
    return torch.where(index >= side, 2 * (side - 1) - index, index)


def _spread(value: int | Sequence[int], length: int, name: str) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * length
    values = tuple(int(item) for item in value)
    if len(values) == 1:
        return values * length
    if len(values) != length:
        raise ValueError(f"{name}={values} does not fit a kernel with {length} sides.")
    return values
