"""Place: whether an optimizer needs G on the gradient or on the update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from spatialgrad.sgs.apply import Apply
from spatialgrad.torch_utils.optimizer_trial import TOLERANCE, Trial, try_optimizer

# For optimizers that cannot be tried.
LINEAR = (torch.optim.SGD, torch.optim.ASGD, torch.optim.LBFGS)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where G multiplies, for one optimizer."""

    apply: Literal["gradient", "update"]
    assumed: bool = False
    """``"auto"`` was resolved by a list of classes, as the optimizer could not be tried."""
    no_effect: str | None = None
    """Why scaling here has hardly any effect; None if it has."""


def choose_place(apply: Apply, optimizer: Optimizer, weight: Tensor) -> Place:
    """Decide where to scale the weights of an optimizer; resolves ``"auto"``.

    An optimizer that is linear in the gradient passes G on to the weights. Any other one divides it out again,
    completely or in part, so the update must be scaled instead; unless that would not add up, and a factor on the
    gradient arrives all the same. Which kind it is, is found out by `try_optimizer`.

    Args:
        apply: What the user asked for.
        optimizer: The optimizer that really steps.
        weight: One of the weights to be scaled.

    Raises:
        ValueError: If the update would have to be scaled, but the optimizer does not start from the scaled weights.
    """
    trial = try_optimizer(optimizer, weight)
    name = type(optimizer).__name__
    if trial is None:
        linear = isinstance(optimizer, LINEAR)
        if apply == "auto":
            return Place(apply="gradient" if linear else "update", assumed=True)
        return Place(apply=apply)
    arrives = abs(trial.passed_on - 1) <= TOLERANCE
    found: Literal["gradient", "update"] = "gradient" if trial.linear or (arrives and not trial.adds_up) else "update"
    chosen = found if apply == "auto" else apply
    if chosen == "update" and not trial.adds_up:
        raise ValueError(_refusal(name, trial, arrives))
    # Half of the factor, as a logarithm: of a centre that is 4 times its corners, less than 2 times are left.
    if chosen == "gradient" and trial.passed_on < 0.5:
        return Place(
            apply=chosen,
            no_effect=f"{name} divides factors on the gradient out again, so apply='gradient' has hardly any effect. "
            "Use apply='auto' or 'update'",
        )
    return Place(apply=chosen)


def _refusal(name: str, trial: Trial, arrives: bool) -> str:
    source, way_out = "something other than the weights before the step", "Use another optimizer"
    if trial.own_copies:
        source = f"a copy of its own (in its state: {', '.join(map(repr, trial.own_copies))})"
        way_out = "Use an optimizer without such a copy"
    if arrives:
        way_out = f"Use apply='gradient': {name} passes all of G on"
    elif trial.passed_on > 0.1:
        way_out += ", or apply='gradient' for the part of G that it passes on"
    return f"{name} calculates the weights from {source}, so scaled updates would not add up. {way_out}."
