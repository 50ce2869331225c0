"""Windows: the neighbours that a kernel sees, how maps are padded, and how results are laid out."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from spatialgrad.utils.modules import Convolution

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
        """Build a window from arguments as torch's convolutions take them; by default with one side per dimension."""
        num_dims = num_dims or (1 if isinstance(kernel_size, int) else len(kernel_size))
        sides, steps = _spread(kernel_size, num_dims), _spread(dilation, num_dims)
        if padding == "same":
            totals = [step * (side - 1) for side, step in zip(sides, steps, strict=True)]
            # torch adds an odd pixel at the end
            pads = [(total // 2, total - total // 2) for total in totals]
        elif isinstance(padding, str) and padding != "valid":
            raise ValueError(f"Invalid padding: {padding!r}; choose a number, 'same' or 'valid'.")
        else:
            pads = [(pad, pad) for pad in _spread(0 if isinstance(padding, str) else padding, num_dims)]
        if num_dims > 3 or min(*sides, *steps) < 1 or min(pads)[0] < 0 or padding_mode not in PADDING_MODES:
            raise ValueError(
                f"Invalid window: kernel_size={sides}, padding={padding}, dilation={steps}, "
                f"padding_mode={padding_mode!r}. There are 1 to 3 dimensions, sides and dilations are at least 1, "
                f"padding is not negative, and the modes are {', '.join(PADDING_MODES)}."
            )
        return cls(kernel_size=sides, padding=tuple(pads), dilation=steps, padding_mode=padding_mode)

    @classmethod
    def of_convolution(cls, conv: Convolution) -> Window:
        """Return the window of a convolution."""
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

    def inside(self, padded: Tensor, size: Sequence[int]) -> Tensor:
        """Return the view of padded maps that lies inside of the padding, given the maps' own spatial size."""
        starts = [before for before, _ in self.padding]
        for dim, (start, side) in enumerate(zip(starts, size, strict=True), start=2):
            padded = padded.narrow(dim, start, side)
        return padded

    def fits(self, size: Sequence[int]) -> bool:
        """Return whether maps of this spatial size have a pair of pixels for every displacement."""
        reach = [(step * (side - 1) + 1) // 2 for side, step in zip(self.kernel_size, self.dilation, strict=True)]
        return all(most < side for most, side in zip(reach, self.padded_size(size), strict=True))

    def pad(self, maps: Tensor) -> Tensor:
        """Pad maps of shape (batch, channels, *spatial) as the convolution does."""
        sides = [side for pad in reversed(self.padding) for side in pad]
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return F.pad(maps, sides, mode) if any(sides) else maps


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
    row = {offset: index for index, offset in enumerate((*window.displacements, (0,) * window.num_dims))}
    weights = torch.zeros(len(row), len(window.positions), dtype=dtype, device="cpu")
    for column, offsets in enumerate(window.positions):
        for offset in offsets:
            weights[row[_canonical(offset)], column] += 1 / len(offsets)
    return weights.to(device)


def _canonical(offset: Offset) -> Offset:
    """Return the forward one of an offset and its mirror image."""
    return max(offset, tuple(-step for step in offset))


def _spread(value: int | Sequence[int], length: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    if len(values) not in (1, length):
        raise ValueError(f"{values} does not fit {length} spatial dimensions.")
    return values if len(values) == length else values * length
