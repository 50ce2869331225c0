"""The branches of blocks: modules that train and that fold into one kernel.

Branches are addressed by name:

| name | class | computes |
|---|---|---|
| `kxk` | `ConvBranch` | the full kernel, BatchNorm |
| `1x1`, `1xk`, `kx1` | `ConvBranch` | the point, row or column through the kernel's centre, BatchNorm |
| `1x1_kxk` | `PointwiseConvBranch` | 1×1, BatchNorm, full kernel, BatchNorm |
| `1x1_avg` | `PointwiseAverageBranch` | 1×1, BatchNorm, average over the kernel's window, BatchNorm |
| `identity` | `IdentityBranch` | BatchNorm alone, or nothing at all |
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spatialgrad.reparam.fold import (
    Folded,
    average_kernel,
    batch_norm_affine,
    embed_kernel,
    exact,
    fold_affine,
    fold_batch_norm,
    identity_kernel,
    sequence_pointwise,
)
from spatialgrad.reparam.geometry import NO_PADS, ConvGeometry, KernelWindow, Pads, pad2d, pad2d_with_value

BRANCH_NAMES = ("kxk", "1x1", "1xk", "kx1", "1x1_kxk", "1x1_avg", "identity")
"""All branches, in the order in which blocks hold them."""


class Foldable(nn.Module):
    """A module that one convolution could replace in evaluation mode: a branch, or a block of branches."""

    @abstractmethod
    def fold(self) -> Folded:
        """Return the equivalent kernel and bias, in float64, with running statistics."""


class Branch(Foldable):
    """One addend of a block: a linear map, then a BatchNorm or a scale per output channel, if there is one.

    Subclasses set `bn` last, which keeps the order of parameters in checkpoints of optimizers.

    Args:
        scale: One scale per output channel; it trains if it is a parameter.
    """

    bn: _BatchNorm | None
    scale: Tensor | None

    def __init__(self, scale: Tensor | None = None) -> None:
        super().__init__()
        if isinstance(scale, nn.Parameter):
            self.register_parameter("scale", scale)
        else:
            self.register_buffer("scale", scale)

    @abstractmethod
    def linear(self, x: Tensor) -> Tensor:
        """Return the output without the last BatchNorm or scale."""

    @abstractmethod
    def fold_linear(self) -> Folded:
        """Return `linear` as a kernel of the block's full size and a bias, in float64."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the branch."""
        y = self.linear(x)
        if self.bn is not None:
            y = self.bn(y)
        return y if self.scale is None else y * self.scale.view(-1, 1, 1)

    @torch.no_grad()
    def fold(self) -> Folded:
        """Return the whole branch as a kernel of the block's full size and a bias."""
        folded = self.fold_linear()
        if self.bn is not None:
            folded = fold_batch_norm(folded, self.bn)
        if self.scale is not None:
            folded = fold_affine(folded, self.scale.to(folded.bias), torch.zeros_like(folded.bias))
        return folded


def fold_conv(conv: nn.Conv2d | Foldable) -> Folded:
    """Return a convolution, or what has replaced it inside a branch, as a float64 kernel and bias."""
    if not isinstance(conv, nn.Conv2d):
        return conv.fold()
    weight = exact(conv.weight)
    return Folded(weight, weight.new_zeros(len(weight)) if conv.bias is None else exact(conv.bias))


class ConvBranch(Branch):
    """A convolution of one window of the kernel.

    Args:
        geometry: The convolution that the block stands for.
        window: Part of its kernel that the branch computes.
        conv: The convolution of this window.
        bn: The BatchNorm; None if the layer has none.
        pads: Paddings to apply before the convolution.
        scale: One scale per output channel.
    """

    conv: nn.Conv2d | Foldable

    def __init__(
        self,
        geometry: ConvGeometry,
        window: KernelWindow,
        conv: nn.Conv2d,
        bn: _BatchNorm | None,
        *,
        pads: Pads = NO_PADS,
        scale: Tensor | None = None,
    ) -> None:
        super().__init__(scale)
        self.kernel_size, self.window, self.padding_mode = geometry.kernel_size, window, geometry.padding_mode
        self.pads, self.conv, self.bn = pads, conv, bn

    @classmethod
    def around(
        cls, conv: nn.Conv2d, geometry: ConvGeometry, bn: _BatchNorm | None, *, scale: Tensor | None = None
    ) -> "ConvBranch":
        """Return the branch `kxk` of a layer's own convolution, which applies its own padding."""
        return cls(geometry, geometry.window("kxk"), conv, bn, scale=scale)

    @classmethod
    def new(
        cls, name: str, geometry: ConvGeometry, bn: _BatchNorm | None, *, like: Tensor, scale: Tensor | None = None
    ) -> "ConvBranch":
        """Return a freshly initialized branch `1x1`, `1xk` or `kx1`, with the dtype and device of a weight."""
        window = geometry.window(name)
        pads, conv = geometry.window_conv(window, like=like)
        return cls(geometry, window, conv, bn, pads=pads, scale=scale)

    def linear(self, x: Tensor) -> Tensor:
        """Return the convolution of the window."""
        y: Tensor = self.conv(pad2d(x, self.pads, self.padding_mode))
        return y

    def fold_linear(self) -> Folded:
        """Return the window's kernel inside the full one."""
        inner = fold_conv(self.conv)
        return Folded(embed_kernel(inner.weight, self.kernel_size, self.window[:2]), inner.bias)

    def extra_repr(self) -> str:
        """Return the paddings that are applied before the convolution."""
        return f"pads={self.pads}" if any(self.pads) else ""


class PointwiseBranch(Branch):
    """1×1 convolution, BatchNorm and padding: the common first part of the next two branches."""

    def __init__(self, geometry: ConvGeometry, width: int, norm: Callable[[int], _BatchNorm], like: Tensor) -> None:
        super().__init__()
        self.geometry = geometry
        self.pointwise = geometry.new_conv(like, out_channels=width, kernel_size=1, stride=1, dilation=1)
        self.inner_bn = norm(width)

    def padded(self, x: Tensor) -> Tensor:
        """Return the padded map between the two parts."""
        y: Tensor = self.inner_bn(self.pointwise(x))
        if self.geometry.padding_mode != "zeros":
            # Repeating pixels commutes with a map of single pixels.
            return pad2d(y, self.geometry.pads, self.geometry.padding_mode)
        # A zero pixel outside the image becomes the BatchNorm's shift, not zero.
        return pad2d_with_value(y, batch_norm_affine(self.inner_bn)[1], self.geometry.pads)

    def fold_first(self) -> Folded:
        """Return the 1×1 convolution with its BatchNorm."""
        return fold_batch_norm(fold_conv(self.pointwise), self.inner_bn)


class PointwiseConvBranch(PointwiseBranch):
    """1×1, BatchNorm, k×k, BatchNorm; the 1×1 convolution keeps the number of channels and starts as the identity."""

    conv: nn.Conv2d | Foldable

    def __init__(self, geometry: ConvGeometry, norm: Callable[[int], _BatchNorm], like: Tensor) -> None:
        super().__init__(geometry, geometry.in_channels, norm, like)
        with torch.no_grad():
            weight = self.pointwise.weight
            weight.copy_(identity_kernel(geometry.in_channels, groups=geometry.groups, like=weight))
        self.conv = geometry.new_conv(like)
        self.bn = norm(geometry.out_channels)

    def linear(self, x: Tensor) -> Tensor:
        """Apply 1×1, padding and k×k."""
        y: Tensor = self.conv(self.padded(x))
        return y

    def fold_linear(self) -> Folded:
        """Return the product of both kernels."""
        return sequence_pointwise(self.fold_first(), fold_conv(self.conv), self.geometry.groups)


class PointwiseAverageBranch(PointwiseBranch):
    """1×1, BatchNorm, average over the window, BatchNorm."""

    def __init__(self, geometry: ConvGeometry, norm: Callable[[int], _BatchNorm], like: Tensor) -> None:
        super().__init__(geometry, geometry.out_channels, norm, like)
        self.bn = norm(geometry.out_channels)

    def linear(self, x: Tensor) -> Tensor:
        """Apply 1×1, padding and average."""
        geometry, x = self.geometry, self.padded(x)
        if geometry.dilation == (1, 1):
            return F.avg_pool2d(x, geometry.kernel_size, geometry.stride)
        # torch has no dilated average pooling, but a depthwise convolution can do it.
        average = average_kernel(geometry.out_channels, geometry.kernel_size, like=x)
        return F.conv2d(x, average, None, geometry.stride, 0, geometry.dilation, geometry.out_channels)

    def fold_linear(self) -> Folded:
        """Return the 1×1 kernel spread over the window."""
        first = self.fold_first()
        average = average_kernel(self.geometry.out_channels, self.geometry.kernel_size, like=first.weight)
        return Folded(first.weight * average, first.bias)


class IdentityBranch(Branch):
    """The input itself."""

    def __init__(self, geometry: ConvGeometry, bn: _BatchNorm | None, *, scale: Tensor | None = None) -> None:
        super().__init__(scale)
        self.geometry, self.bn = geometry, bn

    def linear(self, x: Tensor) -> Tensor:
        """Return the input, with as many pixels as the block returns."""
        return pad2d(x, self.geometry.window_pads(self.geometry.window("1x1")), self.geometry.padding_mode)

    def fold_linear(self) -> Folded:
        """Return the identity kernel."""
        geometry = self.geometry
        weight = identity_kernel(geometry.in_channels, geometry.kernel_size, groups=geometry.groups)
        return Folded(weight, weight.new_zeros(len(weight)))


def new_norm(channels: int, example: _BatchNorm | None, like: Tensor) -> _BatchNorm:
    """Return a new BatchNorm with the type, epsilon and momentum of an example, or torch's default one."""
    if example is None:
        return nn.BatchNorm2d(channels, device=like.device, dtype=like.dtype)
    like = like if example.running_mean is None else example.running_mean
    settings: dict[str, Any] = {"eps": example.eps, "momentum": example.momentum}
    settings |= {"device": like.device, "dtype": like.dtype}
    if isinstance(example, nn.SyncBatchNorm):
        return nn.SyncBatchNorm(channels, process_group=example.process_group, **settings)
    return nn.BatchNorm2d(channels, **settings)


def unavailable(name: str, geometry: ConvGeometry) -> str | None:
    """Return the reason why a convolution of this geometry cannot have this branch; None if it can."""
    height, width = geometry.kernel_size
    if name == "identity":
        if geometry.in_channels != geometry.out_channels:
            return f"{geometry.in_channels} input channels do not match {geometry.out_channels} output channels"
        return None if geometry.stride == (1, 1) else f"stride {geometry.stride} skips pixels"
    if name in ("1xk", "kx1") and min(height, width) == 1:
        return f"a {height}×{width} kernel has no smaller row or column through its centre"
    if name != "kxk" and (height, width) == (1, 1):
        return "a 1×1 kernel contains no smaller one"
    return None


def new_branch(name: str, geometry: ConvGeometry, *, norm_like: _BatchNorm | None, like: Tensor) -> Branch:
    """Return a freshly initialized branch.

    Args:
        name: One of `BRANCH_NAMES` except `kxk`.
        geometry: The convolution that the block stands for.
        norm_like: A BatchNorm whose type and settings the new ones get.
        like: A weight with the dtype, device and memory format of the new convolutions.
    """

    def norm(channels: int) -> _BatchNorm:
        return new_norm(channels, norm_like, like)

    if name == "1x1_kxk":
        return PointwiseConvBranch(geometry, norm, like)
    if name == "1x1_avg":
        return PointwiseAverageBranch(geometry, norm, like)
    if name == "identity":
        return IdentityBranch(geometry, norm(geometry.out_channels))
    return ConvBranch.new(name, geometry, norm(geometry.out_channels), like=like)
