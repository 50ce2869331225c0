"""The paper's general form: N branches with binary masks, added up, and one BatchNorm after the sum.

Detkov et al., Spatial Gradient Scaling (ICLR 2023), section 3: training such a block with a linear optimizer is
the same as training the plain convolution with its gradient scaled by G, the sum of the masks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spatialgrad.reparam.block import BranchedConv2d, Method, UnsupportedLayerError
from spatialgrad.reparam.branch import Branch
from spatialgrad.reparam.geometry import ConvGeometry, Window, pad2d, split_pads
from spatialgrad.reparam.kernels import Folded, embed_kernel, exact

__all__ = ["Branches", "MaskedBranch", "equivalent_scaling"]

Mask = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Branches(Method):
    """Masked branches; each convolution whose kernel has the masks' shape becomes `Σ (mask ⊙ weight) * input`.

    The BatchNorm after the convolution, if there is one, stays where it is: after the sum. The function does not
    change: at the start every branch holds an equal share of the kernel.
    """

    masks: Sequence[Any]
    """Binary masks of one shape (height, width), as tensors, arrays or nested sequences. Together they must cover
    every position, because an uncovered weight would be lost."""

    name: ClassVar[str] = "Branches"
    takes_batch_norm: ClassVar[bool] = False

    def __post_init__(self) -> None:
        tensors = [torch.as_tensor(mask) for mask in self.masks]
        if not tensors:
            raise ValueError("Branches needs at least one mask.")
        for number, tensor in enumerate(tensors):
            if tensor.ndim != 2 or tensor.shape != tensors[0].shape:
                raise ValueError(
                    f"Masks must be matrices of one shape; mask {number} has {tuple(tensor.shape)}, "
                    f"the first one {tuple(tensors[0].shape)}."
                )
            if not ((tensor == 0) | (tensor == 1)).all():
                raise ValueError(f"Masks must be binary; mask {number} is {tensor.tolist()}.")
            if not tensor.any():
                raise ValueError(f"Mask {number} is empty: its branch would never do anything.")
        uncovered = (torch.stack(tensors).sum(dim=0) == 0).nonzero().tolist()
        if uncovered:
            raise ValueError(f"No mask covers the positions {uncovered}: the weights there would be lost.")
        masks: tuple[Mask, ...] = tuple(
            tuple(tuple(int(value) for value in row) for row in tensor.tolist()) for tensor in tensors
        )
        object.__setattr__(self, "masks", masks)  # plain, hashable and safe to save

    @property
    def kernel_size(self) -> tuple[int, int]:
        """The shape of the masks, and of the kernels that they fit."""
        return len(self.masks[0]), len(self.masks[0][0])

    def includes(self, conv: nn.Conv2d) -> bool:
        """Kernels of the masks' shape."""
        return conv.kernel_size == self.kernel_size

    def check(self, layer: str, conv: nn.Conv2d) -> None:
        """Raises `UnsupportedLayerError` for kernels that the method cannot divide."""
        if conv.kernel_size != self.kernel_size:
            raise UnsupportedLayerError(
                f"{layer!r} has kernel {conv.kernel_size}, the masks have shape {self.kernel_size}. "
                "Leave it out with include= or give masks of its shape."
            )

    @torch.no_grad()
    def build(self, conv: nn.Conv2d, bn: _BatchNorm | None) -> BranchedConv2d:
        """The block of masked branches, each with its share of the kernel."""
        geometry = ConvGeometry.of(conv)
        masks = [torch.tensor(mask, dtype=torch.float64, device=exact(conv.weight).device) for mask in self.masks]
        share = exact(conv.weight) / torch.stack(masks).sum(dim=0)
        branches: dict[str, Branch] = {}
        for number, mask in enumerate(masks):
            branch = MaskedBranch(geometry, mask.to(conv.weight))
            branch.weight.copy_(branch.crop(share * mask))
            branch.weight.requires_grad_(conv.weight.requires_grad)
            branches[f"mask{number}"] = branch
        block = BranchedConv2d(geometry, branches, method=self.name, bias=cast("nn.Parameter | None", conv.bias))
        return block.train(conv.training)


class MaskedBranch(Branch):
    """The convolution with `mask ⊙ weight`, computed on the mask's bounding box only."""

    box_mask: Tensor

    def __init__(self, geometry: ConvGeometry, mask: Tensor) -> None:
        super().__init__()
        self.geometry, self.bn = geometry, None
        self.window = _bounding_box(mask)
        shape = (geometry.out_channels, geometry.in_channels // geometry.groups, *self.window[2:])
        self.weight = nn.Parameter(mask.new_zeros(shape))
        # Not in the checkpoint: it is part of the structure, like a kernel size.
        self.register_buffer("box_mask", self.crop(mask), persistent=False)
        self.pads, self.padding = split_pads(geometry.window_pads(self.window), geometry.padding_mode)

    @property
    def mask(self) -> Tensor:
        """The branch's mask in the kernel's full size."""
        return embed_kernel(self.box_mask[None, None], self.geometry.kernel_size, self.window[:2])[0, 0]

    def crop(self, kernel: Tensor) -> Tensor:
        """The part of a full-sized kernel or mask that lies in the bounding box."""
        top, left, height, width = self.window
        return kernel[..., top : top + height, left : left + width]

    def forward(self, x: Tensor) -> Tensor:
        """The convolution of the masked weights."""
        geometry = self.geometry
        x = pad2d(x, self.pads, geometry.padding_mode)
        weight = self.weight * self.box_mask
        return F.conv2d(x, weight, None, geometry.stride, self.padding, geometry.dilation, geometry.groups)

    @torch.no_grad()
    def fold(self) -> Folded:
        """The masked weights, in the kernel's full size."""
        weight = exact(self.weight) * exact(self.box_mask)
        weight = embed_kernel(weight, self.geometry.kernel_size, self.window[:2])
        return Folded(weight, weight.new_zeros(len(weight)))

    def extra_repr(self) -> str:
        """The part of the kernel that the branch sees."""
        return f"window={tuple(self.window)}, positions={int(self.box_mask.sum())}"


def _bounding_box(mask: Tensor) -> Window:
    rows, columns = mask.any(dim=1).nonzero().flatten(), mask.any(dim=0).nonzero().flatten()
    top, left = int(rows[0]), int(columns[0])
    return Window(top, left, int(rows[-1]) - top + 1, int(columns[-1]) - left + 1)


def equivalent_scaling(block: nn.Module) -> Tensor:
    """The spatial gradient scaling G that trains a plain convolution as this block trains: the sum of its masks.

    This is the Lemma's own G, unnormalized, as from `scaling_from_masks(masks, normalize=False)`.

    Raises:
        TypeError: For a block of another method. A BatchNorm inside each branch scales its gradient by numbers that
            change with every step, so no constant G is equivalent.
    """
    masks: Iterable[Tensor] = ()
    if isinstance(block, BranchedConv2d):
        masks = [branch.mask for _, branch in block.named_branches() if isinstance(branch, MaskedBranch)]
    if not masks:
        kind = block.method if isinstance(block, BranchedConv2d) else type(block).__name__
        raise TypeError(f"Only a block of Branches(masks=...) that is not merged has an equivalent G, not {kind}.")
    return torch.stack(list(masks)).sum(dim=0)
