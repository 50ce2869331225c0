"""Optimizers: look through wrappers, and act on gradients before a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
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


def _call_then_act(closure: Callable[[], Any], action: Callable[[], None]) -> Any:
    with torch.enable_grad():
        loss = closure()
    action()
    return loss
