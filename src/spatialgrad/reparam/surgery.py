"""Replace parts of a model, and let its optimizer follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from spatialgrad.utils.optimizers import unwrap_optimizer

# Models


def replace_module_(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replace a module by another one, everywhere in the model where it is registered."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is old:
                parent._modules[name] = new


def tied_parameters(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters that several modules hold: replacing one of these would untie them."""
    holders = Counter(
        parameter for module in model.modules() for parameter in module._parameters.values() if parameter is not None
    )
    return {parameter for parameter, count in holders.items() if count > 1}


def batch_norms(module: nn.Module) -> list[_BatchNorm]:
    """Return all BatchNorms inside a module."""
    return [part for part in module.modules() if isinstance(part, _BatchNorm)]


def nearest_batch_norm(model: nn.Module, layer: nn.Module) -> _BatchNorm | None:
    """Return the next BatchNorm after a layer in the order of registration, or else the last one before it.

    Good enough to copy settings from (kind, epsilon, parameter group). Whether it follows the layer in the forward
    pass is a different question.
    """
    inside = set(layer.modules())
    before: _BatchNorm | None = None
    seen = False
    for module in model.modules():
        seen = seen or module is layer
        if isinstance(module, nn.BatchNorm2d | nn.SyncBatchNorm) and module not in inside:
            if seen:
                return module
            before = module
    return before


# Optimizers


def growable(optimizer: Any) -> Optimizer:
    """Return the torch optimizer inside wrappers, provided that parameters can be added to it.

    Raises:
        TypeError: If there is none inside.
        ValueError: If it is LBFGS, which flattens its parameters once and for all.
    """
    inner = unwrap_optimizer(optimizer)
    if isinstance(inner, torch.optim.LBFGS):
        raise ValueError("LBFGS does not accept new parameters: create it after the conversion.")
    return inner


def hand_over_(
    optimizer: Optimizer,
    model: nn.Module,
    *,
    before: Iterable[nn.Parameter],
    siblings: Mapping[nn.Parameter, Iterable[nn.Parameter]],
) -> None:
    """Add the new trainable parameters of a model to its optimizer and remove those that it lost, in place.

    Args:
        optimizer: The optimizer; the state of the remaining parameters is not touched.
        model: The model after the change.
        before: Its parameters before the change.
        siblings: For each new parameter, older ones whose parameter group it should join; the first of these that the
            optimizer holds decides.

    Raises:
        ValueError: If the optimizer holds none of the older parameters.
    """
    lost = dict.fromkeys(before)
    group_of = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        if parameter in lost:
            del lost[parameter]
        elif parameter.requires_grad:
            group = next((group_of[sibling] for sibling in siblings[parameter] if sibling in group_of), None)
            if group is None:
                raise ValueError(
                    f"The optimizer does not hold the parameters that {name!r} belongs with. Pass the optimizer that "
                    "trains this layer, or leave the layer out with include=."
                )
            group["params"].append(parameter)
            if "param_names" in group:
                group["param_names"].append(name)
    for parameter in lost:
        optimizer.state.pop(parameter, None)
    sort_parameters_(optimizer, model, lost)


def sort_parameters_(optimizer: Optimizer, model: nn.Module, lost: Collection[nn.Parameter] = ()) -> None:
    """Sort each group's parameters into the model's order, and leave out those that the model has lost.

    An optimizer's `state_dict` knows parameters by position only, so the order must follow from the model's structure
    and not from the history of changes.
    """
    position = {parameter: i for i, parameter in enumerate(model.parameters())}
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        old_names = dict(zip(group["params"], group.get("param_names", ()), strict=False))
        kept = [parameter for parameter in group["params"] if parameter not in lost]
        group["params"] = sorted(kept, key=lambda parameter: position.get(parameter, len(position)))
        if "param_names" in group:
            group["param_names"] = [names.get(p, old_names[p]) for p in group["params"]]


def parameter_siblings(
    module: nn.Module, convolution: list[nn.Parameter], norm: list[nn.Parameter]
) -> dict[nn.Parameter, list[nn.Parameter]]:
    """Return for every parameter of a module the older parameters whose optimizer group it belongs to, best first.

    Args:
        module: A block, or a convolution that may have gained a bias.
        convolution: The parameters of the convolution that it replaces: weight, and bias if there is one.
        norm: The parameters of the BatchNorm that it absorbs, or of one nearby: weight and bias, or none.
    """
    siblings: dict[nn.Parameter, list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1:
            siblings[parameter] = convolution
        else:
            own = norm[1:] + norm[:1] if name.endswith("bias") else norm
            siblings[parameter] = [*own, *convolution[1:], *convolution]
    return siblings
