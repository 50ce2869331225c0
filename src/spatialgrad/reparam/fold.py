"""The kernel algebra of structural reparameterization, as pure functions.

Every branch of every method in this package is an affine map of the input that a kernel and a bias can express. These
functions bring batch normalization, small kernels, sequences, averages and identities into that form; a block is
merged by adding up the folded branches. Nothing here knows about blocks or models.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm


class Folded(NamedTuple):
    """A branch as one convolution: `weight` of shape (out, in / groups, height, width) and `bias` (out,)."""

    weight: Tensor
    bias: Tensor

    def __add__(self, other: object) -> "Folded":
        if not isinstance(other, Folded):
            return NotImplemented
        # An identity without parameters does not know the device of its block.
        return Folded(self.weight + other.weight.to(self.weight), self.bias + other.bias.to(self.bias))


def exact(tensor: Tensor) -> Tensor:
    """Return a detached float64 copy to fold with; on the CPU where the device has no float64."""
    device = "cpu" if tensor.device.type == "mps" else tensor.device
    return tensor.detach().to(device=device, dtype=torch.float64)


def batch_norm_affine(bn: _BatchNorm, like: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the scale and shift per channel that a BatchNorm applies in evaluation: `y = scale · x + shift`.

    Args:
        bn: The BatchNorm; the result is differentiable in its weight and bias.
        like: A tensor that determines dtype and device of the result; by default the BatchNorm's own.

    Raises:
        ValueError: If the BatchNorm keeps no running statistics and therefore is not an affine map.
    """
    if bn.running_mean is None or bn.running_var is None:
        raise ValueError(
            "A BatchNorm with track_running_stats=False depends on the batch and cannot be folded into a kernel."
        )
    like = bn.running_mean if like is None else like
    scale = (bn.running_var.to(like) + bn.eps).rsqrt()
    if bn.weight is not None:
        scale = scale * bn.weight.to(like)
    shift = -bn.running_mean.to(like) * scale
    if bn.bias is not None:
        shift = shift + bn.bias.to(like)
    return scale, shift


def fold_affine(folded: Folded, scale: Tensor, shift: Tensor) -> Folded:
    """Apply `scale · y + shift` per output channel after a convolution."""
    return Folded(folded.weight * scale[:, None, None, None], folded.bias * scale + shift)


def fold_batch_norm(folded: Folded, bn: _BatchNorm) -> Folded:
    """Fold a BatchNorm, with its running statistics, into the convolution before it."""
    return fold_affine(folded, *batch_norm_affine(bn, like=folded.weight))


def centre(kernel_size: tuple[int, int]) -> tuple[int, int]:
    """Return the centre position of a kernel; on an even side, the upper or left one of the two middle positions."""
    return (kernel_size[0] - 1) // 2, (kernel_size[1] - 1) // 2


def embed_kernel(weight: Tensor, kernel_size: tuple[int, int], offset: tuple[int, int] | None = None) -> Tensor:
    """Place a small kernel inside a larger one that is zero elsewhere.

    Args:
        weight: Kernel of shape (out, in / groups, height, width).
        kernel_size: Height and width of the result.
        offset: Row and column of the small kernel's first element; by default the two centres coincide.
    """
    height, width = weight.shape[-2:]
    if offset is None:
        (row, column), (small_row, small_column) = centre(kernel_size), centre((height, width))
        offset = row - small_row, column - small_column
    top, left = offset
    return F.pad(weight, (left, kernel_size[1] - width - left, top, kernel_size[0] - height - top))


def sequence_pointwise(first: Folded, second: Folded, groups: int = 1) -> Folded:
    """Compose a 1×1 convolution and the k×k convolution after it into one k×k convolution.

    Both have the same number of groups. The result is exact at the borders only if the map between the two is padded
    with the value that a zero pixel takes there, which is the bias of the first convolution.

    Args:
        first: The pointwise convolution: weight (middle, in / groups, 1, 1).
        second: The k×k convolution: weight (out, middle / groups, height, width).
        groups: Number of groups of both.
    """
    pointwise = first.weight[:, :, 0, 0].reshape(groups, -1, first.weight.shape[1])  # group, middle, in
    kernel = second.weight.reshape(groups, -1, *second.weight.shape[1:])  # group, out, middle, height, width
    weight = torch.einsum("gomhw,gmi->goihw", kernel, pointwise).flatten(0, 1)
    passed = torch.einsum("gomhw,gm->go", kernel, first.bias.reshape(groups, -1)).flatten()
    return Folded(weight, second.bias + passed)


def identity_kernel(
    channels: int, kernel_size: tuple[int, int] = (1, 1), *, groups: int = 1, like: Tensor | None = None
) -> Tensor:
    """Return the kernel of shape (channels, channels / groups, *kernel_size) that keeps every channel unchanged.

    It has the dtype and device of `like`; by default it is a float64 tensor on the CPU.
    """
    dtype, device = (torch.float64, torch.device("cpu")) if like is None else (like.dtype, like.device)
    eye = torch.eye(channels // groups, dtype=dtype, device=device).repeat(groups, 1)
    return embed_kernel(eye[:, :, None, None], kernel_size)


def average_kernel(channels: int, kernel_size: tuple[int, int], *, like: Tensor | None = None) -> Tensor:
    """Return the kernel of shape (channels, 1, *kernel_size) that averages each channel separately."""
    eye = identity_kernel(channels, groups=channels, like=like)
    return eye.expand(-1, -1, *kernel_size) / (kernel_size[0] * kernel_size[1])
