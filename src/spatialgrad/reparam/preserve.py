"""Let branches join a trained layer without changing its output: measure them, and absorb what they contribute."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spatialgrad.reparam.block import BranchedConv2d
from spatialgrad.reparam.branches import Branch, ConvBranch, fold_conv
from spatialgrad.reparam.fold import Folded, batch_norm_affine, exact, fold_affine
from spatialgrad.utils.distributed import all_reduce_, highest, is_distributed, raise_together
from spatialgrad.utils.loaders import Forward, RandomStates, default_forward, move_to, take_batches
from spatialgrad.utils.modules import quiet_evaluation

NEW_BRANCH_STRENGTH = 0.01
"""Weight of the last BatchNorm in a branch that joins a trained network: small, so that little has to change."""


@torch.no_grad()
def set_strength_(branch: Branch, strength: float) -> None:
    """Set the weight of a branch's last BatchNorm, and its bias so that the branch adds no constant."""
    bn = cast("_BatchNorm", branch.bn)
    bn.weight.fill_(strength)
    bn.bias.zero_()
    bn.bias.copy_(-branch.fold().bias)


@torch.no_grad()
def compensate_(block: BranchedConv2d) -> None:
    """Give all other branches a small strength and subtract their contribution from `kxk`, in place.

    Afterwards, all branches together compute what the `kxk` branch alone computed before, without its scale.
    """
    full = cast("ConvBranch", block.branches["kxk"])
    if full.scale is not None:
        cast("nn.Conv2d", full.conv).weight.div_(full.scale.view(-1, 1, 1, 1))
    for name, branch in block.named_branches():
        if name != "kxk":
            if branch.bn is not None:
                set_strength_(branch, NEW_BRANCH_STRENGTH)
            contribution = branch.fold()
            absorb_(block, Folded(-contribution.weight, torch.zeros_like(contribution.bias)))


@torch.no_grad()
def make_identity_(bn: _BatchNorm) -> None:
    """Set weight and bias of a BatchNorm so that it returns its input in evaluation mode, in place."""
    bn.weight.copy_((exact(cast("Tensor", bn.running_var)) + bn.eps).sqrt())
    bn.bias.copy_(cast("Tensor", bn.running_mean))


@contextmanager
def bypassed(norms: Iterable[_BatchNorm]) -> Iterator[None]:
    """Let BatchNorms return their inputs, while they still measure them."""
    handles = [norm.register_forward_hook(lambda module, args, output: args[0]) for norm in norms]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def absorb_(target: nn.Module, addend: Folded) -> None:
    """Add a kernel and bias to a convolution, the sum of a block's branches or its `kxk` branch, in place.

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
        absorb_(target.merged or target.branches["kxk"], addend)
        return
    branch = cast("ConvBranch", target)
    bn = branch.bn
    if bn is None:
        if branch.scale is not None:
            addend = Folded(addend.weight / branch.scale.to(addend.weight).view(-1, 1, 1, 1), addend.bias)
        absorb_(branch.conv, addend)
        return

    before = fold_conv(branch.conv)
    scale, shift = batch_norm_affine(bn, like=before.weight)
    wanted = fold_affine(before, scale, shift) + addend
    new_scale = scale if bn.weight is None else _steady_scale(before.weight, wanted.weight, scale)
    weight = wanted.weight / new_scale[:, None, None, None] - before.weight
    if bn.bias is None:
        absorb_(branch.conv, Folded(weight, (wanted.bias - shift) / new_scale - before.bias))
        return
    absorb_(branch.conv, Folded(weight, torch.zeros_like(before.bias)))
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


def calibrate_(
    model: nn.Module,
    norms: Iterable[_BatchNorm],
    data: Any,
    *,
    batches: int | None = None,
    forward: Forward | None = None,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Replace the running statistics of some BatchNorms by averages over batches, in place.

    All other layers run in evaluation mode. Modes, momenta and random states are restored. Under `torch.distributed`,
    statistics are averaged over all ranks, which use as many batches as each of them has.

    Args:
        model: The model.
        norms: The BatchNorms to measure.
        data: A loader, a list of batches, or one batch.
        batches: Number of batches to use; by default all of a list, and 2 of anything else.
        forward: ``forward(model, batch)``; by default ``model(x)`` or ``model(**batch)``.
        group: The processes that train together; by default all.

    Raises:
        ValueError: If `data` contains no batch, on any rank.
        RuntimeError: If another rank failed.
    """
    norms = list(norms)
    momenta = {norm: norm.momentum for norm in norms}
    device = next(model.parameters()).device

    states, error = RandomStates(data), None
    kept: list[Any] = []
    try:
        try:
            kept = take_batches(data, batches, states)
        except Exception as caught:
            error = caught
        raise_together(error, group)
        # Synchronized BatchNorms wait for each other, so no process may take a step that the others do not take.
        used = -highest(-len(kept), group)
        with quiet_evaluation(model):
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # a plain average over the batches
                norm.training = True
            for batch in kept[:used]:
                try:
                    (forward or default_forward)(model, move_to(batch, device))
                except Exception as caught:
                    error = caught
                raise_together(error, group)
    finally:
        states.restore()
        for norm, momentum in momenta.items():
            norm.momentum = momentum
    if not used:
        where = " on at least one process" if is_distributed(group) else ""
        raise ValueError(f"Cannot measure BatchNorm statistics: the data contains no batch{where}.")
    if is_distributed(group):
        statistics = [s for norm in norms for s in (norm.running_mean, norm.running_var) if s is not None]
        all_reduce_([(statistic, "sum") for statistic in statistics], group)
        for statistic in statistics:
            statistic.div_(dist.get_world_size(group))
