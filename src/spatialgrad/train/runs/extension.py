"""Extending a run: more epochs than it was started with, if its first ones are those of the longer training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spatialgrad.train.config.groups import TrainConfig

EPOCHS = "budget.epochs"


def is_longer(differing: Mapping[str, tuple[Any, Any]]) -> bool:
    """Whether the second of two configs differs from the first only by more epochs.

    Args:
        differing: The differences of both, as `differences` returns them.
    """
    return differing.keys() == {EPOCHS} and differing[EPOCHS][0] < differing[EPOCHS][1]


def why_not_extendable(config: TrainConfig) -> str | None:
    """Why a training with more epochs would not begin with the epochs of this one; None if it would."""
    schedule = config.schedule.name
    if schedule in ("cosine", "poly"):
        return (
            f"the {schedule} schedule spreads the decay of the learning rate over all epochs, so a longer training "
            "differs from its first step on; only --schedule.name constant and step can be extended"
        )
    if config.method.name.startswith("lemma"):
        return f"--method {config.method.name} logs at steps that depend on the number of epochs"
    return None
