"""Let a block absorb the contribution of a new branch, so that its output does not change."""

from typing import cast

import torch
from torch import Tensor, nn

from spatialgrad.reparam.block import BranchedConv2d
from spatialgrad.reparam.branch import Branch, ConvBranch, Foldable, fold_conv
from spatialgrad.reparam.kernels import Folded, batch_norm_affine, exact, fold_affine

__all__ = ["NEW_BRANCH_STRENGTH", "absorb_", "compensate_", "set_strength_"]

NEW_BRANCH_STRENGTH = 0.01
"""Weight of the last BatchNorm in a branch that joins a trained network: small, so that little has to change."""


@torch.no_grad()
def set_strength_(branch: Branch, strength: float) -> None:
    """Set the weight of a branch's last BatchNorm, and its bias so that the branch adds no constant."""
    if branch.bn is None or branch.bn.bias is None:
        raise ValueError("Only a branch that ends with an affine BatchNorm has a strength.")
    branch.bn.weight.fill_(strength)
    branch.bn.bias.zero_()
    branch.bn.bias.copy_(-branch.fold().bias)


@torch.no_grad()
def compensate_(block: BranchedConv2d) -> None:
    """Give all other branches a small strength and subtract their contribution from `kxk`, in place.

    Afterwards, all branches together compute what the `kxk` branch alone computed before.
    """
    for name, branch in block.named_branches():
        if name != "kxk":
            if branch.bn is not None:
                set_strength_(branch, NEW_BRANCH_STRENGTH)
            contribution = branch.fold()
            absorb_(block, Folded(-contribution.weight, torch.zeros_like(contribution.bias)))


@torch.no_grad()
def absorb_(target: nn.Conv2d | Foldable, addend: Folded) -> None:
    """Add a kernel and bias to a convolution, a block or its `kxk` branch, in place.

    Inside a block, the addend goes to the `kxk` branch. Before a BatchNorm, it is divided by the BatchNorm's scale. If
    this scale is so small that the kernel would blow up, as with zero-initialized BatchNorm weights, the BatchNorm's
    weight is raised.
    """
    if isinstance(target, nn.Conv2d):
        target.weight.add_(addend.weight.to(target.weight))
        if target.bias is not None:
            target.bias.add_(addend.bias.to(target.bias))
        elif addend.bias.any():
            target.bias = nn.Parameter(addend.bias.to(target.weight))
        return
    if isinstance(target, BranchedConv2d):
        absorb_(target.merged or cast("ConvBranch", target.branches["kxk"]), addend)
        return
    if not isinstance(target, ConvBranch):
        raise TypeError(f"Cannot add a kernel to {type(target).__name__}: only a convolution, block or kxk branch.")
    bn = target.bn
    if bn is None:
        if target.channel_scale is not None:
            addend = Folded(addend.weight / exact(target.channel_scale).view(-1, 1, 1, 1), addend.bias)
        absorb_(target.conv, addend)
        return

    before = fold_conv(target.conv)
    scale, shift = batch_norm_affine(bn, like=before.weight)
    wanted = fold_affine(before, scale, shift) + Folded(addend.weight.to(scale), addend.bias.to(scale))
    new_scale = scale if bn.weight is None else _steady_scale(before.weight, wanted.weight, scale)
    weight = wanted.weight / new_scale[:, None, None, None] - before.weight
    if bn.bias is None:
        absorb_(target.conv, Folded(weight, (wanted.bias - shift) / new_scale - before.bias))
        return
    absorb_(target.conv, Folded(weight, torch.zeros_like(before.bias)))
    mean, std = exact(cast("Tensor", bn.running_mean)), (exact(cast("Tensor", bn.running_var)) + bn.eps).sqrt()
    changed = new_scale != scale
    bn.weight.copy_(torch.where(changed, new_scale * std, exact(bn.weight)))
    bn.bias.copy_(wanted.bias - new_scale * (before.bias - mean))


def _steady_scale(before: Tensor, wanted: Tensor, scale: Tensor) -> Tensor:
    """Return the BatchNorm scale per channel with which the kernel before it does not grow much."""
    size, wanted_size = before.flatten(1).norm(dim=1), wanted.flatten(1).norm(dim=1)
    sign = torch.where(scale < 0, -1.0, 1.0)
    raised = torch.where(size > 0, sign * wanted_size / size, scale)
    steady = torch.where(wanted_size > 2 * scale.abs() * size, raised, scale)
    return torch.where(steady == 0, torch.ones_like(steady), steady)
