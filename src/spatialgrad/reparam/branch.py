"""The branches of blocks: modules that train and that fold into one kernel.

Branches are addressed by name:

| name | computes |
|---|---|
| `kxk` | the full kernel, BatchNorm |
| `1x1`, `1xk`, `kx1` | the point, row or column through the kernel's centre, BatchNorm |
| `1x1_kxk` | 1×1, BatchNorm, full kernel, BatchNorm |
| `1x1_avg` | 1×1, BatchNorm, average over the kernel's window, BatchNorm |
| `identity` | BatchNorm alone, or nothing at all |
"""

from abc import abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spatialgrad.reparam.geometry import ConvGeometry, KernelWindow, conv_like, pad2d, pad2d_with_value
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

BRANCH_NAMES = ("kxk", "1x1", "1xk", "kx1", "1x1_kxk", "1x1_avg", "identity")
"""All branches, in the order in which blocks hold them."""


class Foldable(nn.Module):
    """A module that one convolution could replace in evaluation mode: a branch, or a block of branches."""

    @abstractmethod
    def fold(self) -> Folded:
        """Return the equivalent kernel and bias, in float64, with running statistics."""


class Branch(Foldable):
    """One addend of a block; it folds into a kernel of the block's full size."""

    bn: _BatchNorm | None
    """The last BatchNorm, which scales the whole branch."""

    @property
    def has_bias(self) -> bool:
        """Whether the branch also adds a constant."""
        return self.bn is not None


def fold_conv(conv: nn.Conv2d | Foldable) -> Folded:
    """Return a convolution, or what has replaced it inside a branch, as a float64 kernel and bias."""
    if not isinstance(conv, nn.Conv2d):
        return conv.fold()
    weight = exact(conv.weight)
    return Folded(weight, weight.new_zeros(len(weight)) if conv.bias is None else exact(conv.bias))


class ConvBranch(Branch):
    """A convolution of one window of the kernel, and a BatchNorm unless the layer had none."""

    conv: nn.Conv2d | Foldable

    def __init__(
        self,
        geometry: ConvGeometry,
        window: KernelWindow,
        bn: _BatchNorm | None,
        *,
        conv: nn.Conv2d | None = None,
        like: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size, self.window, self.padding_mode = geometry.kernel_size, window, geometry.padding_mode
        if conv is not None:
            self.pads = (0, 0, 0, 0)  # the original layer applies its own padding
        elif like is not None:
            self.pads, conv = geometry.window_conv(window, like=like)
        else:
            raise ValueError("ConvBranch needs either `conv` or `like`.")
        self.conv, self.bn = conv, bn

    @property
    def has_bias(self) -> bool:
        """Whether the BatchNorm or the convolution adds a constant."""
        return self.bn is not None or not isinstance(self.conv, nn.Conv2d) or self.conv.bias is not None

    @property
    def channel_scale(self) -> Tensor | None:
        """A scale per output channel that follows the convolution, other than a BatchNorm's."""
        return None

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of the window."""
        y: Tensor = self.conv(pad2d(x, self.pads, self.padding_mode))
        if self.bn is not None:
            y = self.bn(y)
        return y

    @torch.no_grad()
    def fold(self) -> Folded:
        """Return the window's kernel inside the full one, with the BatchNorm."""
        inner = fold_conv(self.conv)
        weight = embed_kernel(inner.weight, self.kernel_size, (self.window.top, self.window.left))
        folded = Folded(weight, inner.bias)
        return folded if self.bn is None else fold_batch_norm(folded, self.bn)

    def extra_repr(self) -> str:
        """Return the paddings that are applied before the convolution."""
        return f"pads={self.pads}" if any(self.pads) else ""


class _PointwiseFirst(Branch):
    """1×1 convolution, BatchNorm and padding: the common first part of two branches."""

    def __init__(self, geometry: ConvGeometry, width: int, norm: Callable[[int], _BatchNorm], like: Tensor) -> None:
        super().__init__()
        self.geometry = geometry
        self.pointwise = conv_like(like, geometry.in_channels, width, 1, groups=geometry.groups)
        self.inner_bn = norm(width)

    def padded(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner_bn(self.pointwise(x))
        if self.geometry.padding_mode != "zeros":
            # Repeating pixels commutes with a map of single pixels.
            return pad2d(y, self.geometry.pads, self.geometry.padding_mode)
        # A zero pixel outside the image becomes the BatchNorm's shift, not zero.
        return pad2d_with_value(y, batch_norm_affine(self.inner_bn)[1], self.geometry.pads)

    def fold_first(self) -> Folded:
        weight = exact(self.pointwise.weight)
        return fold_batch_norm(Folded(weight, weight.new_zeros(len(weight))), self.inner_bn)


class PointwiseConvBranch(_PointwiseFirst):
    """1×1, BatchNorm, k×k, BatchNorm; the 1×1 convolution keeps the number of channels and starts as the identity."""

    conv: nn.Conv2d | Foldable
    bn: _BatchNorm

    def __init__(self, geometry: ConvGeometry, norm: Callable[[int], _BatchNorm], like: Tensor) -> None:
        super().__init__(geometry, geometry.in_channels, norm, like)
        with torch.no_grad():
            weight = self.pointwise.weight
            weight.copy_(identity_kernel(geometry.in_channels, groups=geometry.groups, device=exact(weight).device))
        self.conv = geometry.new_conv(geometry.kernel_size, like=like)
        self.bn = norm(geometry.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Apply 1×1, padding and k×k."""
        y: Tensor = self.bn(self.conv(self.padded(x)))
        return y

    @torch.no_grad()
    def fold(self) -> Folded:
        """Return the product of both kernels, with the BatchNorms."""
        sequence = sequence_pointwise(self.fold_first(), fold_conv(self.conv), self.geometry.groups)
        return fold_batch_norm(sequence, self.bn)


class PointwiseAverageBranch(_PointwiseFirst):
    """1×1, BatchNorm, average over the window, BatchNorm."""

    bn: _BatchNorm

    def __init__(self, geometry: ConvGeometry, norm: Callable[[int], _BatchNorm], like: Tensor) -> None:
        super().__init__(geometry, geometry.out_channels, norm, like)
        self.bn = norm(geometry.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Apply 1×1, padding and average."""
        y: Tensor = self.bn(self._average(self.padded(x)))
        return y

    def _average(self, x: Tensor) -> Tensor:
        geometry = self.geometry
        if geometry.dilation == (1, 1):
            return F.avg_pool2d(x, geometry.kernel_size, geometry.stride)
        # torch has no dilated average pooling, but a depthwise convolution can do it.
        channels = geometry.out_channels
        weight = average_kernel(channels, geometry.kernel_size, groups=channels, dtype=x.dtype, device=x.device)
        return F.conv2d(x, weight, None, geometry.stride, 0, geometry.dilation, channels)

    @torch.no_grad()
    def fold(self) -> Folded:
        """Return the 1×1 kernel spread over the window, with the BatchNorms."""
        first, channels = self.fold_first(), self.geometry.out_channels
        average = average_kernel(channels, self.geometry.kernel_size, groups=channels, device=first.weight.device)
        return fold_batch_norm(Folded(first.weight * average, first.bias), self.bn)


class IdentityBranch(Branch):
    """The input itself, normalized by a BatchNorm if there is one."""

    def __init__(self, geometry: ConvGeometry, bn: _BatchNorm | None) -> None:
        super().__init__()
        self.geometry, self.bn = geometry, bn

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized input."""
        y = pad2d(x, self.geometry.window_pads(self.geometry.point), self.geometry.padding_mode)
        return y if self.bn is None else self.bn(y)

    @torch.no_grad()
    def fold(self) -> Folded:
        """Return the identity kernel, with the BatchNorm."""
        geometry, device = self.geometry, "cpu" if self.bn is None else exact(self.bn.weight).device
        weight = identity_kernel(geometry.in_channels, geometry.kernel_size, groups=geometry.groups, device=device)
        folded = Folded(weight, weight.new_zeros(len(weight)))
        return folded if self.bn is None else fold_batch_norm(folded, self.bn)


def new_norm(channels: int, example: _BatchNorm | None, like: Tensor) -> _BatchNorm:
    """Return a new BatchNorm with the type, epsilon and momentum of an example, or torch's default one."""
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
        name: One of `BRANCH_NAMES`.
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
    window = {"kxk": geometry.full, "1x1": geometry.point, "1xk": geometry.row, "kx1": geometry.column}[name]
    return ConvBranch(geometry, window, norm(geometry.out_channels), like=like)
