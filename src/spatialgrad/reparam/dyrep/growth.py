"""The operations of DyRep: score convolutions, grow one, cut branches, describe and rebuild a structure.

Growing and cutting do not change the network's output in evaluation mode.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spatialgrad.reparam.block import BranchedConv2d, branched
from spatialgrad.reparam.branches import BRANCH_NAMES, ConvBranch, new_norm
from spatialgrad.reparam.dyrep.config import Score
from spatialgrad.reparam.fold import batch_norm_affine, exact
from spatialgrad.reparam.preserve import absorb_, bypassed, calibrate_, compensate_, make_identity_, set_strength_
from spatialgrad.reparam.surgery import batch_norms, nearest_batch_norm, replace_module_, tied_parameters
from spatialgrad.utils.distributed import all_reduce_, is_distributed
from spatialgrad.utils.loaders import Forward
from spatialgrad.utils.modules import Predicate

METHOD = "DyRep"
_GROWING = ("kxk", "1x1_kxk")  # the branches whose full convolution can grow in turn


SCORES: dict[Score, Callable[[Tensor, Tensor], Tensor]] = {
    "synflow": lambda gradient, weight: (gradient * weight).sum(),
    "snip": lambda gradient, weight: (gradient * weight).abs().sum(),
    "gradient-norm": lambda gradient, weight: gradient.norm(),
}
"""The scores of a convolution, as functions of its gradient and weight."""


class ScoreRecord:
    """Sums and numbers of scores by name; they stay on the device until the means are read."""

    def __init__(self, kind: Score) -> None:
        self._measure = SCORES[kind]
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, gradient: Tensor, weight: Tensor) -> None:
        """Record the score of one step."""
        score = self._measure(gradient, weight).float()
        self._sums[name] = self._sums[name] + score if name in self._sums else score
        self._counts[name] = self._counts.get(name, 0) + 1

    def means(
        self, names: Iterable[str], device: torch.device, group: dist.ProcessGroup | None = None
    ) -> dict[str, float]:
        """Return the mean scores over all processes, for names that have any."""
        names = list(names)
        nothing = torch.zeros((), device=device)
        sums = torch.stack([self._sums.get(name, nothing).to(device) for name in names])
        counts = torch.tensor([float(self._counts.get(name, 0)) for name in names], device=device)
        if is_distributed(group):
            all_reduce_([(sums, "sum"), (counts, "sum")], group)
        means = (sums / counts).tolist()
        return {name: mean for name, mean, count in zip(names, means, counts.tolist(), strict=True) if count}

    def clear(self) -> None:
        """Discard all scores."""
        self._sums, self._counts = {}, {}

    def state_dict(self) -> dict[str, Any]:
        """Return the record as plain numbers."""
        return {name: [float(total), self._counts[name]] for name, total in self._sums.items()}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore a record."""
        self._sums = {name: torch.tensor(float(total), device=device) for name, (total, _) in state.items()}
        self._counts = {name: int(count) for name, (_, count) in state.items()}


def growth_points(model: nn.Module, include: Predicate, max_depth: int) -> dict[str, nn.Conv2d]:
    """Return the convolutions that may grow, by qualified name.

    These are trainable plain `torch.nn.Conv2d` layers with both kernel sides larger than 1 that share no parameters
    with other layers and are nested in fewer than `max_depth` blocks. `include` is called with the outermost block.
    """
    tied, modules = tied_parameters(model), dict(model.named_modules())
    blocks = {name: module for name, module in modules.items() if isinstance(module, BranchedConv2d)}
    points: dict[str, nn.Conv2d] = {}
    for name, module in modules.items():
        if type(module) is not nn.Conv2d or min(module.kernel_size) == 1 or "weight" not in module._parameters:
            continue
        if not module.weight.requires_grad or not tied.isdisjoint(module.parameters()):
            continue
        if hasattr(module.weight, "to_local"):
            raise ValueError(f"{name!r} is sharded: DyRep supports DistributedDataParallel, but not sharded models.")
        around = [outer for outer in blocks if name.startswith(f"{outer}.")]
        if len(around) >= max_depth or any(blocks[outer].method != METHOD for outer in around):
            continue
        outermost = around[0] if around else name
        if include(outermost, modules[outermost]):
            points[name] = module
    return points


def grown_blocks(model: nn.Module) -> dict[str, BranchedConv2d]:
    """Return the blocks that DyRep has grown, inner ones before outer ones."""
    found = [(n, m) for n, m in model.named_modules() if isinstance(m, BranchedConv2d) and m.method == METHOD]
    return dict(reversed(found))


@torch.no_grad()
def grow_(
    model: nn.Module,
    conv: nn.Conv2d,
    *,
    seed: int,
    data: Any,
    batches: int | None = None,
    forward: Forward | None = None,
    group: dist.ProcessGroup | None = None,
) -> BranchedConv2d:
    """Replace a convolution by a block with all branches that its shape allows, in place.

    The new branches are initialized from `seed`, independently of the global random state. The statistics of all new
    BatchNorms are measured on `data`.
    """
    block = _new_block(model, conv, BRANCH_NAMES, seed)
    bn = cast("_BatchNorm", block.branches["kxk"].bn)
    replace_module_(model, conv, block)
    for name, branch in block.named_branches():
        if name != "kxk":
            set_strength_(branch, 0.0)
    try:
        with bypassed([bn]):  # the network computes the same as before
            calibrate_(model, batch_norms(block), data, batches=batches, forward=forward, group=group)
    except BaseException:
        replace_module_(model, block, conv)
        raise
    make_identity_(bn)
    compensate_(block)
    return block


def _new_block(model: nn.Module, conv: nn.Conv2d, names: tuple[str, ...], seed: int) -> BranchedConv2d:
    like = nearest_batch_norm(model, conv)
    bn = new_norm(conv.out_channels, like, conv.weight)
    bn.requires_grad_(conv.weight.requires_grad).train(conv.training)
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: it would also seed other devices, whose states are not restored.
        torch.default_generator.manual_seed(seed)
        return branched(conv, names, method=METHOD, bn=bn, norm_like=like)


def branch_weights(block: BranchedConv2d) -> dict[str, float]:
    """Return the weight of each branch: the mean of |last BatchNorm weight|, relative to the `kxk` branch's."""
    norms = {name: cast("_BatchNorm", branch.bn) for name, branch in block.named_branches()}
    means = {name: float(bn.weight.detach().abs().mean()) for name, bn in norms.items()}
    full = means.pop("kxk")
    return {name: mean / full if full else float("inf") for name, mean in means.items()}


def branches_to_cut(weights: Mapping[str, float], *, spread: float, threshold: float) -> list[str]:
    """Return the branches below both the mean and the threshold; none if the weights differ too little."""
    values = torch.tensor(list(weights.values()), dtype=torch.float64, device="cpu")
    if len(values) < 2 or not values.std() > spread:
        return []
    mean = float(values.mean())
    return [name for name, weight in weights.items() if weight < mean and weight < threshold]


@torch.no_grad()
def cut_(model: nn.Module, block: BranchedConv2d, names: list[str]) -> None:
    """Fold branches of a block into its `kxk` branch, in place; a block with no other branch becomes a convolution."""
    branches = dict(block.named_branches())
    for name in names:
        absorb_(block, branches[name].fold())
        del block.branches[name]
    if list(block.branches) == ["kxk"]:
        kxk = cast("ConvBranch", block.branches["kxk"])
        bn = cast("_BatchNorm", kxk.bn)
        _scale_(kxk.conv, *batch_norm_affine(bn, like=exact(bn.weight)))
        replace_module_(model, block, kxk.conv)


def _scale_(target: nn.Module, scale: Tensor, shift: Tensor) -> None:
    """Change the output y of a convolution or block to `scale · y + shift`, in place."""
    if isinstance(target, nn.Conv2d):
        target.weight.mul_(scale[:, None, None, None].to(target.weight))
        bias = shift if target.bias is None else exact(target.bias) * scale + shift
        if target.bias is None:
            target.bias = nn.Parameter(bias.to(target.weight))
        else:
            target.bias.copy_(bias)
        return
    for name, branch in cast("BranchedConv2d", target).named_branches():
        bn = cast("_BatchNorm", branch.bn)
        bn.weight.copy_(exact(bn.weight) * scale)
        bn.bias.copy_(exact(bn.bias) * scale + (shift if name == "kxk" else 0))


def core(module: nn.Module) -> nn.Conv2d:
    """Return the original convolution inside a layer that may have grown."""
    while isinstance(module, BranchedConv2d):
        module = cast("ConvBranch", module.branches["kxk"]).conv
    return cast("nn.Conv2d", module)


def structure_of(module: nn.Module) -> dict[str, Any]:
    """Return the structure of a layer as plain values: a convolution with or without bias, or a block of branches."""
    if not isinstance(module, BranchedConv2d):
        return {"bias": getattr(module, "bias", None) is not None}
    branches: dict[str, Any] = {}
    for name, branch in module.named_branches():
        branches[name] = structure_of(cast("nn.Module", branch.conv)) if name in _GROWING else None
    return {"branches": branches}


def rebuild_(model: nn.Module, name: str, structure: Mapping[str, Any]) -> None:
    """Give a plain convolution of a model a structure from `structure_of`, in place.

    Raises:
        ValueError: If the convolution cannot have it, as that of another network.
    """
    conv = cast("nn.Conv2d", model.get_submodule(name))
    branches = structure.get("branches")
    if branches is None:
        if structure.get("bias") and conv.bias is None:
            conv.bias = nn.Parameter(conv.weight.new_zeros(conv.out_channels))
        return
    block = _new_block(model, conv, tuple(branches), seed=0)
    if set(block.branches) != set(branches):
        raise ValueError(f"{name!r} cannot have the branches {', '.join(branches)}: the state is of another network.")
    replace_module_(model, conv, block)
    for branch in _GROWING:
        if branch in branches:
            rebuild_(model, f"{name}.branches.{branch}.conv", branches[branch])
