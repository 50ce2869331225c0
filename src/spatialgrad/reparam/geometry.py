"""The geometry of a convolution, and the paddings that align a smaller kernel inside it.

A branch with a smaller receptive field acts on a window of the full kernel. As a convolution of its own, it needs
different paddings, which are negative (a crop) where the full convolution pads less than the distance between the
window and the kernel's edge. With the paddings computed here, the output of every branch has the same size as the
full convolution's and is aligned with it, borders included, for any stride, padding and dilation.
"""

from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spatialgrad.reparam.fold import centre

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
"""The padding modes of torch's convolutions."""

Pads = tuple[int, int, int, int]
"""Left, right, top and bottom, in the order of `torch.nn.functional.pad`; negative values crop."""
NO_PADS: Pads = (0, 0, 0, 0)


class KernelWindow(NamedTuple):
    """A rectangle of positions inside a kernel."""

    top: int
    left: int
    height: int
    width: int


@dataclass(frozen=True, kw_only=True)
class ConvGeometry:
    """The arguments of a `torch.nn.Conv2d`, except its bias."""

    in_channels: int
    out_channels: int
    kernel_size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] | str
    dilation: tuple[int, int]
    groups: int
    padding_mode: PaddingMode

    @classmethod
    def of(cls, conv: nn.Conv2d) -> "ConvGeometry":
        """Return the geometry of a convolution."""
        return cls(**{field.name: getattr(conv, field.name) for field in fields(cls)})

    def __str__(self) -> str:
        kernel = "×".join(map(str, self.kernel_size))
        text = f"{self.in_channels}→{self.out_channels}, kernel {kernel}, stride {self.stride}"
        return f"{text}, padding {self.padding}, dilation {self.dilation}, groups {self.groups}"

    @property
    def pads(self) -> Pads:
        """Padding on each side, also for `padding="same"` and `padding="valid"`."""
        if self.padding == "valid":
            return NO_PADS
        if self.padding == "same":
            # Like torch: the odd pixel of an even extent goes to the right and to the bottom.
            height, width = ((k - 1) * d for k, d in zip(self.kernel_size, self.dilation, strict=True))
            return width // 2, width - width // 2, height // 2, height - height // 2
        rows, columns = cast("tuple[int, int]", self.padding)
        return columns, columns, rows, rows

    def window(self, name: str) -> KernelWindow:
        """Return the whole kernel (`kxk`), or the row (`1xk`), column (`kx1`) or point (`1x1`) through its centre."""
        (row, column), (height, width) = centre(self.kernel_size), self.kernel_size
        top, rows = (0, height) if name in ("kxk", "kx1") else (row, 1)
        left, columns = (0, width) if name in ("kxk", "1xk") else (column, 1)
        return KernelWindow(top, left, rows, columns)

    def window_pads(self, window: KernelWindow) -> Pads:
        """Return the paddings with which a convolution of this window alone is aligned with the full one."""
        left, right, top, bottom = self.pads
        (height, width), (down, across) = self.kernel_size, self.dilation
        return (
            left - window.left * across,
            right - (width - window.left - window.width) * across,
            top - window.top * down,
            bottom - (height - window.top - window.height) * down,
        )

    def window_conv(self, window: KernelWindow, *, like: Tensor) -> tuple[Pads, nn.Conv2d]:
        """Return the paddings to apply first, and a freshly initialized convolution of one window.

        Paddings that torch's convolution supports are left to it: they then cost no copy of the input.
        """
        explicit, native = split_pads(self.window_pads(window), self.padding_mode)
        return explicit, self.new_conv(like, kernel_size=(window.height, window.width), padding=native)

    def new_conv(self, like: Tensor, **changes: Any) -> nn.Conv2d:
        """Return a freshly initialized convolution, with the device, dtype and memory format of a weight.

        It has neither padding nor bias, and otherwise this geometry except for the `changes`. The initial weights are
        drawn on the CPU: a seed gives the same ones on every device.
        """
        settings = {**vars(self), "padding": 0, "padding_mode": "zeros", **changes}
        conv = nn.Conv2d(**settings, bias=False, device="meta" if like.is_meta else "cpu", dtype=like.dtype)
        return _in_format_of(like, conv.to(like.device))

    def empty_conv(self, *, bias: bool, like: Tensor) -> nn.Conv2d:
        """Return a convolution of this geometry with uninitialized parameters."""
        conv = nn.Conv2d(**vars(self), bias=bias, device="meta", dtype=like.dtype)
        return _in_format_of(like, conv.to_empty(device=like.device))


def _in_format_of(like: Tensor, conv: nn.Conv2d) -> nn.Conv2d:
    return cast("nn.Conv2d", conv.to(memory_format=memory_format_of(like)))  # type: ignore[call-overload]


def memory_format_of(tensor: Tensor) -> torch.memory_format:
    """Return the memory format of a map or weight: channels last, or else contiguous.

    The strides decide, because 1×1 kernels are contiguous in both formats.
    """
    return torch.channels_last if tensor.stride(1) < tensor.stride(3) else torch.contiguous_format


def split_pads(pads: Pads, mode: str) -> tuple[Pads, tuple[int, int]]:
    """Split paddings into those to apply explicitly and those that a convolution supports (rows, columns)."""
    left, right, top, bottom = pads
    if mode == "zeros" and left == right >= 0 and top == bottom >= 0:
        return NO_PADS, (top, left)
    return pads, (0, 0)


def pad2d(x: Tensor, pads: Pads, mode: str = "zeros") -> Tensor:
    """Pad with the mode of a convolution; negative paddings crop."""
    if mode == "zeros":
        return F.pad(x, pads) if any(pads) else x
    grow = [max(pad, 0) for pad in pads]
    crop = [min(pad, 0) for pad in pads]
    if any(grow):
        # Circular padding returns maps in torch's default format.
        x = F.pad(x, grow, mode=mode).contiguous(memory_format=memory_format_of(x))
    return F.pad(x, crop) if any(crop) else x


def pad2d_with_value(x: Tensor, value: Tensor, pads: Pads) -> Tensor:
    """Pad each channel with its own value; differentiable in both the map and the values."""
    if not any(pads):
        return x
    left, right, top, bottom = pads
    batch, channels, height, width = x.shape
    value = value.to(x.dtype).view(1, channels, 1, 1)
    # One write of the border value and one of the map: half the passes of `pad(x - value) + value`.
    padded = value.expand(batch, channels, top + height + bottom, left + width + right)
    padded = padded.clone(memory_format=memory_format_of(x))
    padded[..., top : top + height, left : left + width] = x
    return padded
