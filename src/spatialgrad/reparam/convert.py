"""`reparameterize_`: replace the convolutions of a model by blocks with branches."""

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from spatialgrad.reparam.block import (
    BranchedConv2d,
    Reparameterization,
    UnsupportedLayerError,
    branched,
    outer_modules,
)
from spatialgrad.reparam.bn_tracing import following_batch_norms
from spatialgrad.reparam.branches import ConvBranch
from spatialgrad.reparam.merging import default_tolerance, evaluate_block, largest_difference, probe_for
from spatialgrad.reparam.preserve import bypassed, calibrate_, compensate_, make_identity_, set_strength_
from spatialgrad.reparam.surgery import (
    batch_norms,
    growable,
    hand_over_,
    nearest_batch_norm,
    parameter_siblings,
    replace_module_,
    tied_parameters,
)
from spatialgrad.utils.loaders import Forward
from spatialgrad.utils.modules import Predicate, unwrap_model
from spatialgrad.utils.optimizers import parameter_ids

logger = logging.getLogger(__name__)


def reparameterize_(
    model: nn.Module,
    config: Reparameterization,
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
    """Replace convolutions of a model by the blocks of a method, in place.

    Everything is checked before anything changes. Each convolution becomes the `kxk` branch of its block and keeps its
    parameters. If the method requires it, the BatchNorm that follows moves into that branch and leaves an `nn.Identity`
    behind. Convert the model before wrapping it for distributed training.

    Args:
        model: Any model.
        config: `ACB()`, `RepVGG()`, `QARepVGG()`, `DBB()`, `Branches(masks=...)` or `RepOpt()`.
        include: Predicate ``(name, module) -> bool`` that selects `torch.nn.Conv2d` layers; by default those that the
            method's paper replaces.
        exclude: Predicate for layers to leave out.
        optimizer: The optimizer, if it exists already. New parameters join the parameter groups of their layer, removed
            ones leave with their state, all others keep their state.
        preserve: Whether the output in evaluation mode must not change. By default, it is preserved for trained layers:
            those without a BatchNorm and those whose BatchNorm has seen a batch.
        example_inputs: Inputs for one forward pass (one tensor, a tuple of positional or a dict of keyword inputs).
            Required only if the model cannot be traced symbolically to find the BatchNorm that follows a convolution.
        data: Training data for measuring the statistics of new BatchNorms in preserved layers, so that the output in
            training mode stays close as well: a loader, a list of batches, or one batch. Without it, the statistics
            start at 0 and 1.
        batches: Number of batches of `data` to use; by default 2 of a loader and all of a list.
        forward: ``forward(model, batch)``, for models that are not called as ``model(x)`` or ``model(**batch)``.

    Returns:
        The same model.

    Raises:
        UnsupportedLayerError: If a layer cannot be replaced; the message names it.
        ValueError: If there is no layer to replace, or the optimizer does not hold the parameters of one.

    Example:
        >>> import torch
        >>> from spatialgrad.reparam import DBB
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8))
        >>> model = reparameterize_(model, DBB())
        >>> list(model[0].branches)
        ['kxk', '1x1', '1x1_kxk', '1x1_avg']
        >>> model[1]
        Identity()
    """
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise ValueError(
            f"Convert the model before wrapping it in {type(model).__name__}, which would not synchronize the new "
            "parameters: call reparameterize_(model.module, ...), then wrap it again."
        )
    root = unwrap_model(model)
    torch_optimizer = None if optimizer is None else growable(optimizer)
    layers = _find_layers(root, config, include, exclude, example_inputs)
    if torch_optimizer is not None:
        _check_held(layers, torch_optimizer)

    before = list(root.parameters())
    siblings: dict[nn.Parameter, list[nn.Parameter]] = {}
    kept: list[tuple[str, BranchedConv2d, Tensor]] = []
    undo: list[tuple[nn.Module, nn.Module]] = []
    for name, conv, bn in layers:
        like, old = bn or nearest_batch_norm(root, conv), list(conv.parameters())
        # A BatchNorm that stays behind the block tells as much as one that moves into it.
        keep = _was_trained(bn if config.takes_batch_norm else like) if preserve is None else preserve
        reference = _output_of(branched(conv, ("kxk",), method=config.name, bn=bn)) if keep else None
        block = config.build(conv, bn, name)
        siblings |= parameter_siblings(block, old, [] if like is None else list(like.parameters()))
        if bn is not None:
            undo.append((nn.Identity().train(conv.training), bn))
            replace_module_(root, bn, undo[-1][0])
        undo.append((block, conv))
        replace_module_(root, conv, block)
        if reference is not None:
            kept.append((name, block, reference))

    parts = [part for _, conv, bn in layers for part in (conv, bn) if part is not None]
    values = {parameter: parameter.detach().clone() for part in parts for parameter in part.parameters()}
    try:
        # Others than these preserve their function by construction.
        blocks = [block for _, block, _ in kept if "kxk" in block.branches]
        _preserve_(root, blocks, {bn for _, _, bn in layers}, data, batches, forward)
        for name, block, reference in kept:
            _check_preserved(f"{config.name} in place of {name!r}", block, reference)
    except BaseException:
        for new, replaced in undo:
            replace_module_(root, new, replaced)
        for parameter, value in values.items():
            parameter.data.copy_(value)
        raise
    if torch_optimizer is not None:
        hand_over_(torch_optimizer, root, before=before, siblings=siblings)
    logger.info("%s replaced %d convolutions: %s", config.name, len(layers), ", ".join(name for name, _, _ in layers))
    return model


_Layer = tuple[str, nn.Conv2d, _BatchNorm | None]
"""Name and module of a convolution to replace, and the BatchNorm that moves into its block."""


def _find_layers(
    root: nn.Module,
    config: Reparameterization,
    include: Predicate | None,
    exclude: Predicate | None,
    example_inputs: Any,
) -> list[_Layer]:
    convs: dict[str, nn.Conv2d] = {}
    tied = tied_parameters(root)
    for name, module in outer_modules(root):
        if not isinstance(module, nn.Conv2d) or (exclude is not None and exclude(name, module)):
            continue
        # By default, subclasses of Conv2d are left alone: they may compute something else.
        default = type(module) is nn.Conv2d and config.includes(module)
        if default if include is None else include(name, module):
            _check_replaceable(name, module, tied)
            config.check(name, module)
            convs[name] = module
    norms: dict[str, _BatchNorm | None] = dict.fromkeys(convs)
    if config.takes_batch_norm:
        norms = following_batch_norms(root, convs, example_inputs)
        uncalled = [name for name in convs if name not in norms]
        if uncalled and include is not None:
            raise UnsupportedLayerError(
                f"The forward pass does not call {', '.join(map(repr, uncalled))} as modules, so their blocks would "
                "not be used. Leave them out with include=."
            )
    if not norms:
        raise ValueError(
            f"{config.name} found no convolution to replace. By default, it replaces plain torch.nn.Conv2d layers "
            "with the kernel size of its paper that are not inside a block; pass include= to select others."
        )
    return [(name, convs[name], bn) for name, bn in norms.items()]


def _check_replaceable(layer: str, conv: nn.Conv2d, tied: set[nn.Parameter]) -> None:
    """Raise `UnsupportedLayerError` for anything but a plain convolution with parameters of its own."""
    reason, way_out = "", "Leave it out with include=."
    if not layer:
        reason, way_out = "itself is a convolution", "Wrap it, for example in torch.nn.Sequential(conv)."
    elif type(conv) is not nn.Conv2d:
        reason = f"is a {type(conv).__name__}, and only plain torch.nn.Conv2d layers can be replaced"
    elif "weight" not in conv._parameters:
        reason = "has a weight that is computed, not a parameter"
    elif hasattr(conv.weight, "to_local"):
        reason, way_out = "is sharded", "Convert the model first, then shard it."
    elif conv._forward_hooks or conv._forward_pre_hooks or conv._backward_hooks or conv._backward_pre_hooks:
        reason, way_out = "has hooks that would be lost", "Remove them first, or leave the layer out with include=."
    elif not tied.isdisjoint(conv.parameters()):
        reason = "shares its parameters with another layer"
    if reason:
        raise UnsupportedLayerError(f"{repr(layer) if layer else 'The model'} {reason}. {way_out}")


def _check_held(layers: Iterable[_Layer], optimizer: Optimizer) -> None:
    held = parameter_ids(optimizer)
    missing = [name for name, conv, _ in layers if conv.weight.requires_grad and id(conv.weight) not in held]
    if missing:
        raise ValueError(
            f"The optimizer does not train {', '.join(map(repr, missing))}. Pass the optimizer that does, or leave "
            "the layers out with include=."
        )


def _output_of(block: BranchedConv2d) -> Tensor:
    return evaluate_block(block, probe_for(block))[0]


def _check_preserved(what: str, block: BranchedConv2d, reference: Tensor) -> None:
    output, size = evaluate_block(block, probe_for(block))
    difference = largest_difference(reference, output, size)
    if not difference.relative <= default_tolerance(reference.dtype):  # also for NaN
        raise RuntimeError(
            f"{what} changed the output by {difference}. The layer's weights or BatchNorm statistics may be too "
            "extreme for this precision."
        )


def _was_trained(bn: _BatchNorm | None) -> bool:
    if bn is None or bn.running_mean is None or bn.running_var is None:
        return True  # no sign of the contrary
    if bn.num_batches_tracked is not None and bn.num_batches_tracked > 0:
        return True
    return bool(bn.running_mean.any() or (bn.running_var != 1).any())


def _preserve_(
    root: nn.Module,
    blocks: Sequence[BranchedConv2d],
    old_norms: Collection[_BatchNorm | None],
    data: Any,
    batches: int | None,
    forward: Forward | None,
) -> None:
    """Let blocks compute what their convolutions computed, and measure all new BatchNorms if there is data."""
    new = [branch for block in blocks for name, branch in block.named_branches() if name != "kxk" and branch.bn]
    full = [cast("ConvBranch", block.branches["kxk"]).bn for block in blocks]
    inner = [norm for norm in full if norm is not None and norm not in old_norms]
    if data is not None and new:
        for branch in new:
            set_strength_(branch, 0.0)  # the new branches are measured, but contribute nothing yet
        norms = [norm for branch in new for norm in batch_norms(branch)]
        calibrate_(root, norms, data, batches=batches, forward=forward)
    for norm in inner:
        make_identity_(norm)
    for block in blocks:
        compensate_(block)
    if data is not None and inner:
        with bypassed(inner):
            calibrate_(root, inner, data, batches=batches, forward=forward)
        for norm in inner:
            make_identity_(norm)
