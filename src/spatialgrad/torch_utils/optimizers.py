"""Optimizers: look through wrappers, act on gradients before a step, and exchange parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

# Wrappers


def unwrap_optimizer(optimizer: Any) -> Optimizer:
    """Return the optimizer that really steps, inside wrappers such as those of Accelerate, Fabric, fastai or Opacus."""
    seen: set[int] = set()
    while id(optimizer) not in seen:
        seen.add(id(optimizer))
        for attribute in ("optimizer", "base_optimizer", "_base_optimizer", "original_optimizer", "opt", "base"):
            inner = getattr(optimizer, attribute, None)
            if hasattr(inner, "param_groups"):
                optimizer = inner
                break
    if not isinstance(optimizer, Optimizer):
        kind = type(optimizer)
        # With its module: classes of other libraries are called Optimizer, too.
        name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        raise TypeError(
            f"Expected a torch.optim.Optimizer or a wrapper around one, got {name}. If it wraps one, pass that; "
            "fastai's own optimizers have none, but its OptimWrapper takes one."
        )
    return optimizer


def unwrap_optimizers(optimizers: Any) -> list[Optimizer]:
    """Return the optimizers that really step, given one or a list; wrappers that share one count once."""
    several = optimizers if isinstance(optimizers, list | tuple) else [optimizers]
    if not several:
        raise ValueError("No optimizer to attach to: the list is empty.")
    return list(dict.fromkeys(map(unwrap_optimizer, several)))


def parameter_ids(optimizer: Optimizer) -> set[int]:
    """Return the identities of all parameters that an optimizer updates."""
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


# Closures


def act_on_gradients(
    action: Callable[[], None], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Run an action as soon as an optimizer step has its gradients; the body of a step pre-hook.

    ``step()`` finds the gradients in place, so the action runs at once. ``step(closure)`` computes them in the
    closure, so the action runs after every call of the closure.

    Args:
        action: Reads or changes the gradients.
        args: The positional arguments that the hook got; the first one is the optimizer.
        kwargs: The keyword arguments that the hook got.

    Returns:
        What the hook must return: None, or the step's arguments with the closure replaced.
    """
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if closure is None:
        action()
        return None
    replaced = partial(_call_then_act, closure, action)
    if len(args) > 1:
        return (args[0], replaced, *args[2:]), kwargs
    return args, {**kwargs, "closure": replaced}


# Exchanging parameters


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
    added: Mapping[nn.Parameter, Iterable[nn.Parameter]],
    removed: Iterable[nn.Parameter] = (),
) -> None:
    """Add parameters to an optimizer and remove others, in place.

    Args:
        optimizer: The optimizer; the state of the remaining parameters is not touched.
        model: The model after the change, for the names and the order of the parameters.
        added: New parameters, each with older ones whose parameter group it should join; the first of these that the
            optimizer holds decides.
        removed: Parameters to remove, together with their state.

    Raises:
        ValueError: If the optimizer holds none of the older parameters.
    """
    group_of = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    names = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, siblings in added.items():
        group = next((group_of[sibling] for sibling in siblings if sibling in group_of), None)
        if group is None:
            raise ValueError(
                f"The optimizer does not hold the parameters that {names[parameter]!r} belongs with. Pass the "
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


def sort_parameters_(optimizer: Optimizer, model: nn.Module) -> None:
    """Sort each group's parameters into the model's order.

    An optimizer's `state_dict` knows parameters by position only, so the order must follow from the model's structure
    and not from the history of changes.
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


def _call_then_act(closure: Callable[[], Any], action: Callable[[], None]) -> Any:
    with torch.enable_grad():
        loss = closure()
    action()
    return loss
