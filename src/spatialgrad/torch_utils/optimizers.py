"""Handing parameters to an optimizer, and taking them away, while everything else keeps its state."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

__all__ = ["growable", "hand_over_", "parameter_siblings", "sort_parameters_"]


def growable(optimizer: Any) -> torch.optim.Optimizer:
    """The torch optimizer inside wrappers, if it can get new parameters.

    Raises:
        TypeError: If there is none inside.
        ValueError: If it is LBFGS, which flattens its parameters once and for all.
    """
    inner = unwrap_optimizer(optimizer)
    if isinstance(inner, torch.optim.LBFGS):
        raise ValueError("LBFGS cannot get new parameters: create it after the conversion.")
    return inner


def hand_over_(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    *,
    added: Mapping[nn.Parameter, Iterable[nn.Parameter]],
    removed: Iterable[nn.Parameter] = (),
) -> None:
    """Adds and removes parameters of an optimizer, in place.

    Args:
        optimizer: The optimizer; the state of parameters that stay is not touched.
        model: The model after the change, for the names and the order of the parameters.
        added: New parameters, each with the older ones whose group it shall join: the first that the optimizer
            has decides.
        removed: Parameters to take out, with their state.

    Raises:
        ValueError: If the optimizer has none of the older parameters.
    """
    group_of = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    names = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, siblings in added.items():
        group = next((group_of[sibling] for sibling in siblings if sibling in group_of), None)
        if group is None:
            raise ValueError(
                f"The optimizer does not have the parameters that {names[parameter]!r} belongs with. Pass the "
                "optimizer that trains this layer, or leave the layer out with include=."
            )
        group["params"].append(parameter)
        if "param_names" in group:
            group["param_names"].append(names[parameter])
    for parameter in removed:
        group = group_of.get(parameter)
        if group is not None:
            index = next(i for i, candidate in enumerate(group["params"]) if candidate is parameter)
            del group["params"][index]
            if "param_names" in group:
                del group["param_names"][index]
            optimizer.state.pop(parameter, None)
    sort_parameters_(optimizer, model)


def sort_parameters_(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Puts each group's parameters into the model's order, whatever the history of changes was.

    An optimizer's `state_dict` knows parameters by position only, so the order must follow from the structure.
    """
    position = {parameter: i for i, parameter in enumerate(model.parameters())}
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        params, old_names = group["params"], group.get("param_names")
        order = sorted(range(len(params)), key=lambda i: position.get(params[i], len(position)))
        group["params"] = [params[i] for i in order]
        if old_names is not None:
            group["param_names"] = [names.get(params[i], old_names[i]) for i in order]


def parameter_siblings(
    module: nn.Module, convolution: list[nn.Parameter], norm: list[nn.Parameter]
) -> dict[nn.Parameter, list[nn.Parameter]]:
    """For every parameter of a module the older parameters whose optimizer group it belongs to, best first.

    Args:
        module: A block, or a convolution that may have got a bias.
        convolution: The parameters of the convolution in whose place it stands: weight and perhaps bias.
        norm: The parameters of the BatchNorm that it takes over, or of one close by: weight and bias, or none.
    """
    siblings: dict[nn.Parameter, list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1:
            siblings[parameter] = convolution
        else:
            own = norm[1:] + norm[:1] if name.endswith("bias") else norm
            siblings[parameter] = [*own, *convolution[1:], *convolution]
    return siblings


def unwrap_optimizer(optimizer: Any) -> Optimizer:
    """The optimizer that really steps, inside the wrappers of Accelerate, Fabric, Lightning or Lookahead."""
    seen: set[int] = set()
    while id(optimizer) not in seen:
        seen.add(id(optimizer))
        for attribute in ("optimizer", "base_optimizer", "_base_optimizer"):
            inner = getattr(optimizer, attribute, None)
            if hasattr(inner, "param_groups"):
                optimizer = inner
                break
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"Expected a torch.optim.Optimizer or a wrapper around one, got {type(optimizer).__name__}.")
    return optimizer


def unwrap_optimizers(optimizers: Any) -> list[Optimizer]:
    """The optimizers that really step, of one optimizer or a list of them; wrappers that share one count once."""
    several = optimizers if isinstance(optimizers, list | tuple) else [optimizers]
    if not several:
        raise ValueError("There is no optimizer to attach to: the list is empty.")
    return list(dict.fromkeys(map(unwrap_optimizer, several)))


def parameter_ids(optimizer: Optimizer) -> set[int]:
    """The identities of all parameters that an optimizer updates."""
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
