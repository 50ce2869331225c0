"""`reparameterize_`: puts branched blocks into a model, in place, for one of the methods."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from spatialgrad.reparam.absorb import compensate_, set_strength_
from spatialgrad.reparam.block import BranchedConv2d, Method, UnsupportedLayerError, outer_modules
from spatialgrad.reparam.bn_tracing import following_batch_norms
from spatialgrad.reparam.calibrate import calibrate_
from spatialgrad.reparam.merge import compare, default_tolerance, evaluate_block, probe_for
from spatialgrad.torch_utils.loaders import Forward
from spatialgrad.torch_utils.modules import (
    Predicate,
    batch_norms,
    nearest_batch_norm,
    quiet_evaluation,
    replace_module_,
    tied_parameters,
    unwrap_model,
)
from spatialgrad.torch_utils.optimizers import growable, hand_over_, parameter_ids, parameter_siblings

__all__ = ["reparameterize_"]

logger = logging.getLogger(__name__)


def reparameterize_(
    model: nn.Module,
    config: Method,
    *,
    include: Predicate | None = None,
    exclude: Predicate | None = None,
    optimizer: Any = None,
    preserve: bool | None = None,
    example_inputs: Any = None,
    data: Any = None,
    batches: int | None = None,
    forward: Forward | None = None,
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
        data: Training data on which to measure the statistics of the new BatchNorms of preserved layers, so that also
            the output in training mode stays close: a loader, a list of batches, or one batch. Without it the
            statistics start at 0 and 1.
        batches: How many batches of `data` to use; by default 2 of a loader and all of a list.
        forward: ``forward(model, batch)`` where the model is not called as ``model(x)`` or ``model(**batch)``.

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
    root = unwrap_model(model)
    torch_optimizer = None if optimizer is None else growable(optimizer)
    layers = _find_layers(root, config, include, exclude, example_inputs)
    if torch_optimizer is not None:
        _check_held(layers, torch_optimizer)

    before = list(root.parameters())
    siblings: dict[nn.Parameter, list[nn.Parameter]] = {}
    references: list[tuple[str, BranchedConv2d, Tensor]] = []
    undo: list[tuple[nn.Module, nn.Module | None]] = []
    for name, (conv, bn) in layers.items():
        reference = _evaluate(conv, bn)
        like, old = bn or nearest_batch_norm(root, conv), list(conv.parameters())
        block = config.build(conv, bn)
        siblings |= parameter_siblings(block, old, [] if like is None else list(like.parameters()))
        identity = nn.Identity().train(conv.training)
        if bn is not None:
            replace_module_(root, bn, identity)
        replace_module_(root, conv, block)
        undo += [(block, conv), (identity, bn)]
        if _was_trained(bn) if preserve is None else preserve:
            references.append((name, block, reference))

    kept = [block for _, block, _ in references if "kxk" in block.branches]  # others keep it by construction
    try:
        _measure_(root, kept, data, batches, forward)
    except BaseException:
        for new, old_module in undo:
            if old_module is not None:
                replace_module_(root, new, old_module)
        raise
    for block in kept:
        compensate_(block)
    for name, block, reference in references:
        _check_function(f"{config.name} in place of {name!r}", block, reference)
    if torch_optimizer is not None:
        now, was = set(root.parameters()), set(before)
        added = {p: siblings[p] for p in root.parameters() if p not in was and p.requires_grad}
        hand_over_(torch_optimizer, root, added=added, removed=[p for p in before if p not in now])
    logger.info("%s replaced %d convolutions: %s", config.name, len(layers), ", ".join(layers))
    return model


def _find_layers(
    root: nn.Module, config: Method, include: Predicate | None, exclude: Predicate | None, example_inputs: Any
) -> dict[str, tuple[nn.Conv2d, _BatchNorm | None]]:
    """The convolutions to replace, each with the BatchNorm that goes with it."""
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
    return {name: (convs[name], bn) for name, bn in norms.items()}


def _check_held(layers: Mapping[str, tuple[nn.Conv2d, _BatchNorm | None]], optimizer: Optimizer) -> None:
    held = parameter_ids(optimizer)
    weights = {name: conv.weight for name, (conv, _) in layers.items()}
    missing = [name for name, weight in weights.items() if weight.requires_grad and id(weight) not in held]
    if missing:
        raise ValueError(
            f"The optimizer does not train {', '.join(map(repr, missing))}. Pass the one that does, or leave the "
            "layers out with include=."
        )


def _evaluate(conv: nn.Conv2d, bn: _BatchNorm | None) -> Tensor:
    """What a layer makes of its probe input in evaluation mode."""
    layer = nn.Sequential(conv) if bn is None else nn.Sequential(conv, bn)
    with quiet_evaluation(layer):
        return layer(probe_for(conv))


def _check_function(what: str, block: BranchedConv2d, reference: Tensor) -> None:
    output, size = evaluate_block(block, probe_for(block))
    difference = compare(reference, output, size)
    if not difference.relative <= default_tolerance(reference.dtype):
        raise RuntimeError(
            f"{what} did not keep the function: the output differs by {difference}. The layer's weights or BatchNorm "
            "statistics may be too extreme for this precision."
        )


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


def _measure_(
    root: nn.Module, blocks: Sequence[BranchedConv2d], data: Any, batches: int | None, forward: Forward | None
) -> None:
    """Measures the statistics of all new branches, if there is data."""
    new = [branch for block in blocks for name, branch in block.named_branches() if name != "kxk"]
    if data is not None and new:
        for branch in new:
            set_strength_(branch, 0.0)  # the new branches listen, but say nothing yet
        norms = [norm for branch in new for norm in batch_norms(branch)]
        calibrate_(root, norms, data, batches=batches, forward=forward)


def check_replaceable(layer: str, conv: nn.Module, tied: set[nn.Parameter]) -> None:
    """Raises `UnsupportedLayerError` for what only looks like a plain convolution."""
    way_out = "Leave it out with include=."
    if type(conv) is not nn.Conv2d:
        raise UnsupportedLayerError(
            f"{layer!r} is a {type(conv).__name__}, and only plain torch.nn.Conv2d layers can be replaced. {way_out}"
        )
    if "weight" not in conv._parameters:
        raise UnsupportedLayerError(f"The weight of {layer!r} is computed, not a parameter. {way_out}")
    if hasattr(conv.weight, "to_local"):
        raise UnsupportedLayerError(f"{layer!r} is sharded. Convert the model first and shard it afterwards.")
    if conv._forward_hooks or conv._forward_pre_hooks or conv._backward_hooks or conv._backward_pre_hooks:
        raise UnsupportedLayerError(
            f"{layer!r} has hooks that would be lost. Remove them before the conversion, or leave the layer out "
            "with include=."
        )
    if not tied.isdisjoint(conv.parameters()):
        raise UnsupportedLayerError(f"{layer!r} shares its parameters with another layer. {way_out}")
