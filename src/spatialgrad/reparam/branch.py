"""The branches that blocks are made of, each a module that trains and that folds into one kernel.

Branches are known by name:

| name | what it computes |
|---|---|
| `kxk` | the full kernel, BatchNorm |
| `1x1`, `1xk`, `kx1` | the point, row or column through the kernel's centre, BatchNorm |
| `1x1_kxk` | 1×1, BatchNorm, full kernel, BatchNorm |
| `1x1_avg` | 1×1, BatchNorm, average over the kernel's window, BatchNorm |
| `identity` | BatchNorm alone |
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spatialgrad.reparam.geometry import ConvGeometry, Window, pad2d, pad2d_with_value
from spatialgrad.reparam.kernels import (
    Folded,
    average_kernel,
    batch_norm_affine,
    embed_kernel,
    exact,
    fold_batch_norm,
    identity_kernel,
    sequence_pointwise,
)

if TYPE_CHECKING:
    from spatialgrad.reparam.block import BranchedConv2d

__all__ = ["BRANCH_NAMES", "Branch", "ConvBranch", "fold_conv", "new_branch", "new_norm", "unavailable"]

BRANCH_NAMES = ("kxk", "1x1", "1xk", "kx1", "1x1_kxk", "1x1_avg", "identity")
"""All branches, in the order in which blocks hold them."""


class Branch(nn.Module):
    """One addend of a block: an affine map of the block's input."""

    bn: _BatchNorm | None
    """The last BatchNorm, which scales the whole branch."""

    @property
    def has_bias(self) -> bool:
        """Whether the branch adds a constant as well."""
        return self.bn is not None

    @abstractmethod
    def fold(self) -> Folded:
        """The branch as one kernel of the block's full size, in float64, with running statistics."""


def fold_conv(conv: "nn.Conv2d | BranchedConv2d") -> Folded:
    """A convolution, or a block in a convolution's place, as a float64 kernel and bias."""
    if not isinstance(conv, nn.Conv2d):
        return conv.fold()
    weight = exact(conv.weight)
    return Folded(weight, weight.new_zeros(len(weight)) if conv.bias is None else exact(conv.bias))


class ConvBranch(Branch):
    """A convolution of one window of the kernel, and a BatchNorm unless the layer had none."""

    conv: "nn.Conv2d | BranchedConv2d"

    def __init__(
        self,
        geometry: ConvGeometry,
        window: Window,
        bn: _BatchNorm | None,
        *,
        conv: nn.Conv2d | None = None,
        like: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size, self.window, self.padding_mode = geometry.kernel_size, window, geometry.padding_mode
        if conv is not None:
            self.pads = (0, 0, 0, 0)  # a layer that is taken over pads by itself
        elif like is not None:
            self.pads, conv = geometry.window_conv(window, bias=False, like=like)
        else:
            raise ValueError("ConvBranch needs either the convolution or a tensor like which to make one.")
        self.conv, self.bn = conv, bn

    @property
    def has_bias(self) -> bool:
        """Whether the BatchNorm or the convolution adds a constant."""
        return self.bn is not None or not isinstance(self.conv, nn.Conv2d) or self.conv.bias is not None

    def forward(self, x: Tensor) -> Tensor:
        """The window's convolution."""
        y = self.conv(pad2d(x, self.pads, self.padding_mode))
        return y if self.bn is None else self.bn(y)

    @torch.no_grad()
    def fold(self) -> Folded:
        """The window's kernel inside the full one, with the BatchNorm."""
        inner = fold_conv(self.conv)
        weight = embed_kernel(inner.weight, self.kernel_size, (self.window.top, self.window.left))
        folded = Folded(weight, inner.bias)
        return folded if self.bn is None else fold_batch_norm(folded, self.bn)

    def extra_repr(self) -> str:
        """What is padded or cropped before the convolution."""
        return f"pads={self.pads}" if any(self.pads) else ""


class _PointwiseFirst(Branch):
    """1×1 convolution and BatchNorm, then a border for what follows; the common part of two branches."""

    def __init__(self, geometry: ConvGeometry, width: int, norm: Callable[[int], _BatchNorm], like: Tensor) -> None:
        super().__init__()
        self.geometry = geometry
        self.pointwise = nn.Conv2d(
            geometry.in_channels,
            width,
            1,
            groups=geometry.groups,
            bias=False,
            device=like.device,
            dtype=like.dtype,
        )
        self.inner_bn = norm(width)

    def bordered(self, x: Tensor) -> Tensor:
        y = self.inner_bn(self.pointwise(x))
        if self.geometry.padding_mode != "zeros":
            # Repeating pixels and a map of single pixels commute.
            return pad2d(y, self.geometry.pads, self.geometry.padding_mode)
        # A zero pixel outside the image would have become the BatchNorm's shift, not zero.
        return pad2d_with_value(y, batch_norm_affine(self.inner_bn)[1], self.geometry.pads)

    def fold_first(self) -> Folded:
        weight = exact(self.pointwise.weight)
        return fold_batch_norm(Folded(weight, weight.new_zeros(len(weight))), self.inner_bn)


class PointwiseConvBranch(_PointwiseFirst):
    """1×1, BatchNorm, k×k, BatchNorm; as wide inside as the input, and starting from the identity there."""

    conv: "nn.Conv2d | BranchedConv2d"
    bn: _BatchNorm

    def __init__(self, geometry: ConvGeometry, norm: Callable[[int], _BatchNorm], like: Tensor) -> None:
        super().__init__(geometry, geometry.in_channels, norm, like)
        with torch.no_grad():
            self.pointwise.weight.copy_(identity_kernel(geometry.in_channels, groups=geometry.groups))
        self.conv = nn.Conv2d(
            geometry.in_channels,
            geometry.out_channels,
            geometry.kernel_size,
            stride=geometry.stride,
            dilation=geometry.dilation,
            groups=geometry.groups,
            bias=False,
            device=like.device,
            dtype=like.dtype,
        )
        self.bn = norm(geometry.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """1×1, border, k×k."""
        return self.bn(self.conv(self.bordered(x)))

    @torch.no_grad()
    def fold(self) -> Folded:
        """The product of both kernels, with the BatchNorms."""
        sequence = sequence_pointwise(self.fold_first(), fold_conv(self.conv), self.geometry.groups)
        return fold_batch_norm(sequence, self.bn)


class PointwiseAverageBranch(_PointwiseFirst):
    """1×1, BatchNorm, average over the window, BatchNorm."""

    bn: _BatchNorm

    def __init__(self, geometry: ConvGeometry, norm: Callable[[int], _BatchNorm], like: Tensor) -> None:
        super().__init__(geometry, geometry.out_channels, norm, like)
        self.bn = norm(geometry.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """1×1, border, average."""
        y, geometry = self.bordered(x), self.geometry
        if geometry.dilation == (1, 1):
            return self.bn(F.avg_pool2d(y, geometry.kernel_size, geometry.stride))
        # torch has no dilated average pooling; a depthwise convolution is one.
        channels = geometry.out_channels
        weight = average_kernel(channels, geometry.kernel_size, groups=channels, dtype=y.dtype, device=y.device)
        return self.bn(F.conv2d(y, weight, None, geometry.stride, 0, geometry.dilation, channels))

    @torch.no_grad()
    def fold(self) -> Folded:
        """The 1×1 kernel spread over the window, with the BatchNorms."""
        first, channels = self.fold_first(), self.geometry.out_channels
        average = average_kernel(channels, self.geometry.kernel_size, groups=channels, device=first.weight.device)
        return fold_batch_norm(Folded(first.weight * average, first.bias), self.bn)


class IdentityBranch(Branch):
    """A BatchNorm of the input itself."""

    bn: _BatchNorm

    def __init__(self, geometry: ConvGeometry, norm: Callable[[int], _BatchNorm]) -> None:
        super().__init__()
        self.geometry = geometry
        self.bn = norm(geometry.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """The normalized input."""
        pads = self.geometry.window_pads(self.geometry.point)
        return self.bn(pad2d(x, pads, self.geometry.padding_mode))

    @torch.no_grad()
    def fold(self) -> Folded:
        """The identity kernel, with the BatchNorm."""
        geometry = self.geometry
        weight = identity_kernel(
            geometry.in_channels,
            geometry.kernel_size,
            groups=geometry.groups,
            device=exact(self.bn.weight).device,
        )
        return fold_batch_norm(Folded(weight, weight.new_zeros(len(weight))), self.bn)


def new_norm(channels: int, example: _BatchNorm | None, like: Tensor) -> _BatchNorm:
    """A BatchNorm of the same kind, epsilon and momentum as an example, or torch's default one."""
    if example is None:
        return nn.BatchNorm2d(channels, device=like.device, dtype=like.dtype)
    like = like if example.running_mean is None else example.running_mean
    if isinstance(example, nn.SyncBatchNorm):
        return nn.SyncBatchNorm(
            channels,
            eps=example.eps,
            momentum=example.momentum,
            process_group=example.process_group,
            device=like.device,
            dtype=like.dtype,
        )
    return nn.BatchNorm2d(channels, eps=example.eps, momentum=example.momentum, device=like.device, dtype=like.dtype)


def unavailable(name: str, geometry: ConvGeometry) -> str | None:
    """Why a convolution of this geometry cannot have this branch, or None where it can."""
    height, width = geometry.kernel_size
    if name == "identity":
        if geometry.in_channels != geometry.out_channels:
            return f"{geometry.in_channels} input channels cannot pass as {geometry.out_channels} output channels"
        return None if geometry.stride == (1, 1) else f"stride {geometry.stride} skips pixels"
    if name in ("1xk", "kx1") and min(height, width) == 1:
        return f"a {height}×{width} kernel has no smaller row or column through its centre"
    if name != "kxk" and (height, width) == (1, 1):
        return "a 1×1 kernel contains no smaller one"
    return None


def new_branch(name: str, geometry: ConvGeometry, *, norm_like: _BatchNorm | None, like: Tensor) -> Branch:
    """A freshly initialized branch.

    Args:
        name: One of `BRANCH_NAMES`.
        geometry: The convolution that the block stands for.
        norm_like: A BatchNorm whose kind and settings the new ones get.
        like: A tensor with the dtype and device of the new convolutions.
    """

    def norm(channels: int) -> _BatchNorm:
        return new_norm(channels, norm_like, like)

    if name == "1x1_kxk":
        return PointwiseConvBranch(geometry, norm, like)
    if name == "1x1_avg":
        return PointwiseAverageBranch(geometry, norm, like)
    if name == "identity":
        return IdentityBranch(geometry, norm)
    window = {"kxk": geometry.full, "1x1": geometry.point, "1xk": geometry.row, "kx1": geometry.column}[name]
    return ConvBranch(geometry, window, norm(geometry.out_channels), like=like)
