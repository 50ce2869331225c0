"""Let a block absorb what a new branch adds, so that its function stays the same."""

from typing import cast

import torch
from torch import Tensor, nn

from spatialgrad.reparam.block import BranchedConv2d
from spatialgrad.reparam.branch import Branch, ConvBranch, fold_conv
from spatialgrad.reparam.kernels import Folded, batch_norm_affine, exact, fold_affine

NEW_BRANCH_STRENGTH = 0.01
"""The last BatchNorm's weight of a branch that joins a trained network: small, so that little has to move."""


@torch.no_grad()
def set_strength_(branch: Branch, strength: float) -> None:
    """Sets a branch's last BatchNorm to this weight, and its bias so that the branch adds no constant."""
    if branch.bn is None or branch.bn.bias is None:
        raise ValueError("Only a branch that ends in a BatchNorm with weight and bias has a strength.")
    branch.bn.weight.fill_(strength)
    branch.bn.bias.zero_()
    branch.bn.bias.copy_(-branch.fold().bias)


@torch.no_grad()
def compensate_(block: BranchedConv2d) -> None:
    """Lets new branches join with little strength, and takes what they contribute away from `kxk`, in place.

    Before, the block's function is that of its `kxk` branch alone; afterwards it is the same, by all branches.
    """
    for name, branch in block.named_branches():
        if name != "kxk":
            set_strength_(branch, NEW_BRANCH_STRENGTH)
            contribution = branch.fold()
            absorb_(block, Folded(-contribution.weight, torch.zeros_like(contribution.bias)))


@torch.no_grad()
def absorb_(target: nn.Conv2d | BranchedConv2d | ConvBranch, addend: Folded) -> None:
    """Adds a kernel and bias to the function of a convolution, a block or its `kxk` branch, in place.

    Inside a block the addend goes to the `kxk` branch. What stands before a BatchNorm has to be divided by its
    scale; where the scale is so small that the kernel would blow up, as after zero-initialized BatchNorm weights,
    the BatchNorm's weight takes part of it.
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
    bn = target.bn
    if bn is None:
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
    """The BatchNorm scale per channel with which the kernel before it does not grow much beyond what it is."""
    size, wanted_size = before.flatten(1).norm(dim=1), wanted.flatten(1).norm(dim=1)
    sign = torch.where(scale < 0, -1.0, 1.0)
    raised = torch.where(size > 0, sign * wanted_size / size, scale)
    steady = torch.where(wanted_size > 2 * scale.abs() * size, raised, scale)
    return torch.where(steady == 0, torch.ones_like(steady), steady)
