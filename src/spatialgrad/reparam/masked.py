"""The general form of the spatial gradient scaling paper: a sum of branches with binary masks, then one BatchNorm.

Detkov et al., "Reparameterization through Spatial Gradient Scaling", ICLR 2023,
section 3: training such a block with a linear optimizer is equivalent to training the plain convolution with its
gradient scaled by G, the sum of the masks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spatialgrad.reparam.block import BranchedConv2d, Reparameterization, UnsupportedLayerError
from spatialgrad.reparam.branches import Branch
from spatialgrad.reparam.fold import Folded, embed_kernel, exact
from spatialgrad.reparam.geometry import ConvGeometry, KernelWindow, memory_format_of, pad2d, split_pads

Mask = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Branches(Reparameterization):
    """Masked branches: each convolution whose kernel has the masks' shape becomes `Σ (mask ⊙ weight) * input`.

    A BatchNorm after the convolution stays after the sum. The output does not change: every branch starts with an equal
    share of the kernel.
    """

    masks: Sequence[Any]
    """Binary masks of one shape (height, width), as tensors, arrays or nested sequences. Together they must cover
    every position, because an uncovered weight would be lost."""

    name: ClassVar[str] = "Branches"
    takes_batch_norm: ClassVar[bool] = False

    def __post_init__(self) -> None:
        tensors = [torch.as_tensor(mask, device="cpu") for mask in self.masks]
        if not tensors:
            raise ValueError("Branches requires at least one mask.")
        for number, tensor in enumerate(tensors):
            if tensor.ndim != 2 or tensor.shape != tensors[0].shape:
                raise ValueError(
                    f"Masks must be matrices of the same shape; mask {number} has shape {tuple(tensor.shape)}, "
                    f"mask 0 has {tuple(tensors[0].shape)}."
                )
            if not ((tensor == 0) | (tensor == 1)).all():
                raise ValueError(f"Masks must be binary; mask {number} is {tensor.tolist()}.")
            if not tensor.any():
                raise ValueError(f"Mask {number} is all zeros: its branch would have no effect.")
        uncovered = (torch.stack(tensors).sum(dim=0) == 0).nonzero().tolist()
        if uncovered:
            raise ValueError(f"No mask covers the positions {uncovered}: the weights there would be lost.")
        masks: tuple[Mask, ...] = tuple(
            tuple(tuple(int(value) for value in row) for row in tensor.tolist()) for tensor in tensors
        )
        object.__setattr__(self, "masks", masks)  # plain, hashable and safe to save

    @property
    def kernel_size(self) -> tuple[int, int]:
        """Shape of the masks and of the kernels that they fit."""
        return len(self.masks[0]), len(self.masks[0][0])

    def includes(self, conv: nn.Conv2d) -> bool:
        """Return whether the kernel has the masks' shape."""
        return conv.kernel_size == self.kernel_size

    def check(self, layer: str, conv: nn.Conv2d) -> None:
        """Raise `UnsupportedLayerError` for kernels of another shape than the masks."""
        if conv.kernel_size != self.kernel_size:
            raise UnsupportedLayerError(
                f"{layer!r} has kernel {conv.kernel_size}, the masks have shape {self.kernel_size}. "
                "Leave it out with include=, or pass masks of its shape."
            )

    @torch.no_grad()
    def build(self, conv: nn.Conv2d, bn: _BatchNorm | None, layer: str = "") -> BranchedConv2d:
        """Build the block of masked branches, each with its share of the kernel."""
        geometry = ConvGeometry.of(conv)
        masks = [torch.tensor(mask, dtype=torch.float64, device=exact(conv.weight).device) for mask in self.masks]
        share = exact(conv.weight) / torch.stack(masks).sum(dim=0)
        branches: dict[str, Branch] = {}
        for number, mask in enumerate(masks):
            branch = MaskedBranch(geometry, mask.to(conv.weight))
            branch.to(memory_format=memory_format_of(conv.weight))  # type: ignore[call-overload]
            branch.weight.copy_(branch.crop(share * mask))
            branch.weight.requires_grad_(conv.weight.requires_grad)
            branches[f"mask{number}"] = branch
        block = BranchedConv2d(geometry, branches, method=self.name, bias=cast("nn.Parameter | None", conv.bias))
        return block.train(conv.training)


class MaskedBranch(Branch):
    """The convolution with `mask ⊙ weight`, computed on the mask's bounding box alone."""

    box_mask: Tensor

    def __init__(self, geometry: ConvGeometry, mask: Tensor) -> None:
        super().__init__()
        self.geometry, self.bn = geometry, None
        self.window = _bounding_box(mask)
        shape = (geometry.out_channels, geometry.in_channels // geometry.groups, *self.window[2:])
        self.weight = nn.Parameter(mask.new_zeros(shape))
        # Not in checkpoints: it is part of the structure, like a kernel size.
        self.register_buffer("box_mask", self.crop(mask), persistent=False)
        self.pads, self.padding = split_pads(geometry.window_pads(self.window), geometry.padding_mode)

    @property
    def mask(self) -> Tensor:
        """The mask of the branch, in the kernel's full size."""
        return embed_kernel(self.box_mask[None, None], self.geometry.kernel_size, self.window[:2])[0, 0]

    def crop(self, kernel: Tensor) -> Tensor:
        """Return the part of a full-sized kernel or mask inside the bounding box."""
        top, left, height, width = self.window
        return kernel[..., top : top + height, left : left + width]

    def linear(self, x: Tensor) -> Tensor:
        """Return the convolution with the masked weights."""
        geometry = self.geometry
        x = pad2d(x, self.pads, geometry.padding_mode)
        weight = self.weight * self.box_mask
        return F.conv2d(x, weight, None, geometry.stride, self.padding, geometry.dilation, geometry.groups)

    def fold_linear(self) -> Folded:
        """Return the masked weights, in the kernel's full size."""
        weight = exact(self.weight) * exact(self.box_mask)
        weight = embed_kernel(weight, self.geometry.kernel_size, self.window[:2])
        return Folded(weight, weight.new_zeros(len(weight)))

    def extra_repr(self) -> str:
        """Return the part of the kernel that the branch covers."""
        return f"window={tuple(self.window)}, positions={int(self.box_mask.sum())}"


def _bounding_box(mask: Tensor) -> KernelWindow:
    rows, columns = mask.any(dim=1).nonzero().flatten(), mask.any(dim=0).nonzero().flatten()
    top, left = int(rows[0]), int(columns[0])
    return KernelWindow(top, left, int(rows[-1]) - top + 1, int(columns[-1]) - left + 1)


def equivalent_scaling(block: nn.Module) -> Tensor:
    """Return the G with which training a plain convolution is equivalent to training this block: the sum of its masks.

    This is the unnormalized G of the paper's Lemma, as from `scaling_from_masks(masks, normalize=False)`.

    Raises:
        TypeError: For a block of another method. A BatchNorm inside each branch scales its gradient by factors that
            change with every step, so no constant G is equivalent.
    """
    masks: Iterable[Tensor] = ()
    if isinstance(block, BranchedConv2d):
        masks = [branch.mask for _, branch in block.named_branches() if isinstance(branch, MaskedBranch)]
    if not masks:
        kind = block.method if isinstance(block, BranchedConv2d) else type(block).__name__
        raise TypeError(f"Only an unmerged block of Branches(masks=...) has an equivalent G, not {kind}.")
    return torch.stack(list(masks)).sum(dim=0)
