"""Optimizers, and the learning rate as a function of the step: there is no scheduler state to save."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn
from torch.optim import Optimizer

from spatialgrad.train.config.optimization import OptimizerConfig, ScheduleConfig
from spatialgrad.train.config.optimizers import accepts, arguments_of, optimizer_class
from spatialgrad.train.config.validation import flag, require
from spatialgrad.train.errors import ConfigError


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> Optimizer:
    """The optimizer of a config for a network's parameters.

    Parameters are grouped by learning rate (a group's `lr_factor` multiplies it) and by weight decay.

    Raises:
        ConfigError: If there is no such optimizer, or it does not take the settings.
    """
    kind, options = optimizer_class(config.name), config.parsed_options
    settings: dict[str, object] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    if config.name == "sgd":
        settings |= {"momentum": config.momentum, "nesterov": config.nesterov}
    if not accepts(kind, "weight_decay"):
        require(config.weight_decay == 0, "optimizer.weight_decay", config.weight_decay, f"must be 0 for {config.name}")
        del settings["weight_decay"]
    for option in options:
        if not accepts(kind, option):
            known = ", ".join(arguments_of(kind))
            raise ConfigError(f"{flag('optimizer.options')}: {config.name} takes no {option}; it takes {known}")
    make: Callable[..., Optimizer] = kind
    try:
        return make(_groups(config, model), **settings, **options)
    except Exception as error:  # whatever a class of somebody else's raises
        raise ConfigError(f"{flag('optimizer.name')} {config.name} cannot be built: {error}") from error


def learning_rate(config: ScheduleConfig, peak: float, step: int, *, steps_per_epoch: int, epochs: int) -> float:
    """The learning rate of a step.

    Args:
        config: Which schedule.
        peak: The learning rate at the start, or after warm-up.
        step: Counted from 0, over all epochs.
        steps_per_epoch: Steps in an epoch.
        epochs: Of the whole training.
    """
    warmup, total = config.warmup_epochs * steps_per_epoch, epochs * steps_per_epoch
    if step < warmup:
        return peak * (step + 1) / (math.floor(warmup) + 1)
    if config.name == "constant":
        return peak
    if config.name == "step":
        epoch = step // steps_per_epoch
        return peak * config.gamma ** sum(epoch >= milestone for milestone in config.milestones)
    done = (step - warmup) / max(1.0, total - warmup)
    decay = (1 + math.cos(math.pi * done)) / 2 if config.name == "cosine" else (1 - done) ** config.power
    return config.min_lr + (peak - config.min_lr) * decay


def set_learning_rate_(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of every group, multiplied by the group's `lr_factor` if it has one."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_factor", 1.0)


def _groups(config: OptimizerConfig, model: nn.Module) -> list[nn.Parameter] | list[dict[str, object]]:
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        factor = 1.0 if name.startswith("backbone.") else config.head_factor
        # Biases and the parameters of normalization layers are vectors.
        decays = config.decay_norms_and_biases or parameter.ndim > 1
        groups.setdefault((factor, config.weight_decay if decays else 0.0), []).append(parameter)
    if len(groups) == 1:
        return next(iter(groups.values()))
    return [
        {"params": parameters, "lr_factor": factor, "weight_decay": decay}
        for (factor, decay), parameters in groups.items()
    ]
