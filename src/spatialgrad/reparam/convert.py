"""`reparameterize_`: puts branched blocks into a model, in place, for one of the methods."""

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .block import BranchedConv2d, Method, UnsupportedLayerError, absorb_, set_strength_
from .calibrate import calibrate_, first_of
from .fold import Folded
from .following import following_batch_norms
from .handover import hand_over_, innermost_optimizer
from .merge import compare, default_tolerance, probe_for
from .surgery import (
    check_replaceable,
    innermost,
    nearest_batch_norm,
    outer_modules,
    replace_module_,
    tied_parameters,
)

__all__ = ["NEW_BRANCH_STRENGTH", "batch_norms", "keep_function_", "parameter_siblings", "reparameterize_"]

logger = logging.getLogger(__name__)

NEW_BRANCH_STRENGTH = 0.01
"""The last BatchNorm's weight of a branch that joins a trained network: small, so that little has to move."""

Predicate = Callable[[str, nn.Module], bool]


def reparameterize_(
    model: nn.Module,
    config: Method,
    *,
    include: Predicate | None = None,
    exclude: Predicate | None = None,
    optimizer: Any = None,
    preserve: bool | None = None,
    example_inputs: Any = None,
    batches: Iterable[Any] | None = None,
    forward: Callable[[nn.Module, Any], Any] = first_of,
) -> nn.Module:
    """Replaces convolutions of a model by the blocks of a method, in place.

    Everything is checked before anything is changed. The convolution itself lives on in its block's `kxk` branch
    with the same parameters; so does the BatchNorm after it, where the method wants it, and an `nn.Identity` is left
    in its place. Convert before wrapping the model for distributed training.

    Args:
        model: Any model.
        config: `ACB()`, `RepVGG()`, `DBB()` or `Branches(masks=...)`.
        include: Which `torch.nn.Conv2d` layers, by qualified name and module; by default those that the method's
            paper replaces.
        exclude: Layers to leave out of those.
        optimizer: The optimizer that trains the model already. New parameters join the groups of the layer that they
            came from, parameters that are gone are taken out with their state, all others keep theirs.
        preserve: Whether the output in evaluation mode stays the same. By default it does for layers that were
            trained: those without a BatchNorm and those whose BatchNorm has seen a batch.
        example_inputs: Inputs for one forward pass (one tensor, a tuple of positional or a dict of keyword inputs).
            Needed only if the model cannot be traced symbolically to find which BatchNorm follows a convolution.
        batches: Training batches on which to measure the statistics of the new BatchNorms of preserved layers, so
            that also the output in training mode stays close. Without them the statistics start at 0 and 1.
        forward: How to call the model with one of `batches`.

    Returns:
        The same model.

    Raises:
        UnsupportedLayerError: If a layer cannot be replaced; the message names it.
        ValueError: If no layer was found, or the optimizer does not have the layers' parameters.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise ValueError(
            f"Convert the model before wrapping it in {type(model).__name__}, which would not know the new "
            "parameters: reparameterize_(model.module, ...), then wrap it again."
        )
    root = innermost(model)
    torch_optimizer = None if optimizer is None else innermost_optimizer(optimizer)
    convs = _select(root, config, include, exclude)
    norms: dict[str, _BatchNorm | None] = dict.fromkeys(convs)
    if config.takes_batch_norm:
        norms = following_batch_norms(root, convs, example_inputs)
        uncalled = [name for name in convs if name not in norms]
        if uncalled and include is not None:
            raise UnsupportedLayerError(
                f"The forward pass does not call {', '.join(map(repr, uncalled))} as modules, so blocks in their "
                "place would not be used. Leave them out with include=."
            )
    if not norms:
        raise ValueError(
            f"{config.name} found no convolution to replace. By default it looks for plain torch.nn.Conv2d layers "
            "of its paper's kernel size outside of blocks; pass include= to choose others."
        )

    before = list(root.parameters())
    blocks: dict[str, BranchedConv2d] = {}
    checks: list[tuple[str, BranchedConv2d, Tensor, Tensor]] = []
    siblings: dict[nn.Parameter, list[nn.Parameter]] = {}
    for name, bn in norms.items():
        conv = convs[name]
        like = bn or nearest_batch_norm(root, conv)
        keeps = _was_trained(bn) if preserve is None else preserve
        reference = _evaluate(conv, bn, probe_for(conv))
        old = list(conv.parameters())
        block = config.build(conv, bn)
        siblings |= parameter_siblings(block, old, [] if like is None else list(like.parameters()))
        if bn is not None:
            replace_module_(root, bn, nn.Identity())
        replace_module_(root, conv, block)
        blocks[name] = block
        if keeps:
            checks.append((name, block, probe_for(conv), reference))

    kept = [block for _, block, _, _ in checks if "kxk" in block.branches]
    keep_function_(root, kept, batches, forward)
    for name, block, probe, reference in checks:
        difference = compare(reference, _evaluate(block, None, probe))
        if difference.relative > default_tolerance(reference.dtype):
            raise RuntimeError(
                f"{config.name} did not keep the function of {name!r}: the output differs by {difference}. Its "
                "weights or BatchNorm statistics may be too extreme for this precision."
            )
    if torch_optimizer is not None:
        now = set(root.parameters())
        was = set(before)
        added = {p: siblings[p] for p in root.parameters() if p not in was and p.requires_grad}
        removed = [parameter for parameter in before if parameter not in now]
        hand_over_(torch_optimizer, root, added=added, removed=removed)
    logger.info("%s replaced %d convolutions: %s", config.name, len(blocks), ", ".join(blocks))
    return model


def _select(
    root: nn.Module, config: Method, include: Predicate | None, exclude: Predicate | None
) -> dict[str, nn.Conv2d]:
    convs: dict[str, nn.Conv2d] = {}
    tied = tied_parameters(root)
    for name, module in outer_modules(root):
        if not isinstance(module, nn.Conv2d) or (exclude is not None and exclude(name, module)):
            continue
        if include is None:
            # By default, layers of other types that merely inherit from Conv2d are not ours to replace.
            wanted = type(module) is nn.Conv2d and config.includes(module)
        else:
            wanted = include(name, module)
        if not wanted:
            continue
        if module is root:
            raise ValueError(
                "The model is a single convolution, which cannot be replaced in place: wrap it, for instance in "
                "torch.nn.Sequential(conv)."
            )
        check_replaceable(name, module, tied)
        config.check(name, module)
        convs[name] = module
    return convs


def _was_trained(bn: _BatchNorm | None) -> bool:
    if bn is None or bn.running_mean is None or bn.running_var is None:
        return True  # nothing says that it was not
    if bn.num_batches_tracked is not None and bn.num_batches_tracked > 0:
        return True
    return bool(bn.running_mean.any() or (bn.running_var != 1).any())


@torch.no_grad()
def _evaluate(module: nn.Module, bn: _BatchNorm | None, x: Tensor) -> Tensor:
    """What a layer computes in evaluation mode."""
    parts = nn.ModuleList([module] if bn is None else [module, bn])
    modes = {part: part.training for part in parts.modules()}
    parts.eval()
    for part in parts:
        x = part(x)
    for part, mode in modes.items():
        part.training = mode
    return x


def batch_norms(module: nn.Module) -> list[_BatchNorm]:
    """All BatchNorms inside a module."""
    return [part for part in module.modules() if isinstance(part, _BatchNorm)]


@torch.no_grad()
def keep_function_(
    root: nn.Module,
    blocks: Iterable[BranchedConv2d],
    batches: Iterable[Any] | None,
    forward: Callable[[nn.Module, Any], Any],
) -> None:
    """Makes new blocks compute what their convolutions did: `kxk` gives up what the others contribute."""
    others = [
        [branch for name, branch in block.named_branches() if name != "kxk"] for block in (blocks := list(blocks))
    ]
    if batches is not None and blocks:
        for branches in others:
            for branch in branches:
                set_strength_(branch, 0.0)  # the new branches listen, but say nothing yet
        new = [norm for branches in others for branch in branches for norm in batch_norms(branch)]
        calibrate_(root, new, batches, forward=forward)
    for block, branches in zip(blocks, others, strict=True):
        for branch in branches:
            set_strength_(branch, NEW_BRANCH_STRENGTH)
            contribution = branch.fold()
            absorb_(block, Folded(-contribution.weight, torch.zeros_like(contribution.bias)))


def parameter_siblings(
    block: BranchedConv2d, convolution: list[nn.Parameter], norm: list[nn.Parameter]
) -> dict[nn.Parameter, list[nn.Parameter]]:
    """For every parameter of a block the older parameters whose optimizer group it belongs to, best first.

    Args:
        block: The block.
        convolution: The parameters of the convolution in whose place it stands: weight and perhaps bias.
        norm: The parameters of the BatchNorm that it takes over, or of one close by: weight and bias, or none.
    """
    siblings: dict[nn.Parameter, list[nn.Parameter]] = {}
    for name, parameter in block.named_parameters():
        if parameter.ndim > 1:
            siblings[parameter] = convolution
        else:
            own = norm[1:] + norm[:1] if name.endswith("bias") else norm
            siblings[parameter] = [*own, *convolution[1:], *convolution]
    return siblings
