"""Where G is applied: to the gradient, or to what an optimizer makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from spatialgrad.utils.optimizer_trial import TOLERANCE, try_optimizer

Apply = Literal["gradient", "update", "both", "auto"]
"""To the gradient, to the optimizer's update, to both as RepOptimizer's AdamW does, or where the optimizer needs it."""

# For optimizers that cannot be tried.
LINEAR = (torch.optim.SGD, torch.optim.ASGD, torch.optim.LBFGS)


@dataclass(frozen=True, kw_only=True)
class ApplyMode:
    """Where G multiplies, for the parameters of one optimizer that have the same settings."""

    apply: Literal["gradient", "update", "both"]
    decoupled_decay: bool = False
    """Whether the optimizer decays weights beside its update, so that G must leave the decay alone."""
    assumed: bool = False
    """``"auto"`` was resolved by a list of classes, as the optimizer could not be tried."""
    no_effect: str = ""
    """Why scaling here has almost no effect."""


def resolve_apply(apply: Apply, optimizer: Optimizer, weight: Tensor) -> ApplyMode:
    """Decide where to scale the weights of an optimizer; resolves ``"auto"``.

    An optimizer that is linear in the gradient passes G on to the weights. Any other one divides it out again,
    completely or in part, so the update must be scaled instead; unless that would not add up, and a factor on the
    gradient arrives all the same. `try_optimizer` determines which kind it is.

    Raises:
        ValueError: If the update would have to be scaled, but the optimizer does not start from the scaled weights.
    """
    trial = try_optimizer(optimizer, weight)
    name = type(optimizer).__name__
    if trial is None:
        if apply == "auto":
            return ApplyMode(apply="gradient" if isinstance(optimizer, LINEAR) else "update", assumed=True)
        return ApplyMode(apply=apply)
    arrives = abs(trial.passed_on - 1) <= TOLERANCE
    if apply == "auto":
        apply = "gradient" if trial.linear or (arrives and not trial.adds_up) else "update"
    if apply != "gradient" and not trial.adds_up:
        way_out = "Use another optimizer"
        if arrives:
            way_out = f"Use apply='gradient': {name} passes all of G on"
        elif trial.passed_on > 0.1:
            way_out += ", or apply='gradient' for the part of G that it passes on"
        raise ValueError(f"{name} keeps its own copy of the weights and would overwrite scaled updates. {way_out}.")
    no_effect = ""
    # Half of the factor, as a logarithm: of a centre that is 4 times its corners, less than 2 times are left.
    if apply == "gradient" and trial.passed_on < 0.5:
        no_effect = (
            f"{name} normalizes the gradient, which cancels the scaling: apply='gradient' has almost no effect. Use "
            "apply='auto' or 'update'."
        )
    return ApplyMode(apply=apply, decoupled_decay=trial.decoupled_decay, no_effect=no_effect)
