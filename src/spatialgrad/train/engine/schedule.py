"""The learning rate as a function of the step: nothing to save, nothing to resume."""

from __future__ import annotations

import math

from spatialgrad.train.config.groups import ScheduleConfig


def learning_rate(config: ScheduleConfig, largest: float, step: int, *, steps_per_epoch: int, epochs: int) -> float:
    """The learning rate of a step.

    Args:
        config: Which schedule.
        largest: The learning rate at the start, or after warm-up.
        step: Counted from 0, over all epochs.
        steps_per_epoch: Steps in an epoch.
        epochs: Of the whole training.
    """
    warmup, total = config.warmup_epochs * steps_per_epoch, epochs * steps_per_epoch
    if step < warmup:
        return largest * (step + 1) / (math.floor(warmup) + 1)
    if config.name == "constant":
        return largest
    if config.name == "step":
        epoch = step // steps_per_epoch
        return largest * config.gamma ** sum(epoch >= milestone for milestone in config.milestones)
    done = (step - warmup) / max(1.0, total - warmup)
    falls = (1 + math.cos(math.pi * done)) / 2 if config.name == "cosine" else (1 - done) ** config.power
    return config.min_lr + (largest - config.min_lr) * falls
