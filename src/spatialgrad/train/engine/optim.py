"""The optimizers of the paper's table."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.optim import Optimizer

from spatialgrad.train.config.groups import OptimizerConfig, TrainConfig

_CLASSES: dict[str, type[Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adadelta": torch.optim.Adadelta,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
}

ROWS: dict[str, dict[str, dict[str, object]]] = {
    "SGD": {"optimizer": {"name": "sgd", "momentum": 0.0}},
    "SGD + Momentum": {"optimizer": {"name": "sgd", "momentum": 0.9}},
    "Adadelta": {"optimizer": {"name": "adadelta"}},
    "Adagrad": {"optimizer": {"name": "adagrad"}},
    "Adagrad*": {"optimizer": {"name": "adagrad"}, "scaling": {"apply": "update"}},
    "Adam": {"optimizer": {"name": "adam"}},
    "Adamax": {"optimizer": {"name": "adamax"}},
    "NAdam": {"optimizer": {"name": "nadam"}},
    "RAdam": {"optimizer": {"name": "radam"}},
}
"""The nine rows of the table, by their names in it, and what each changes in a config."""


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> Optimizer:
    """The optimizer that a config describes, for a network's parameters.

    Parameters are grouped by learning rate (a group's `lr_factor` multiplies it) and by weight decay.
    """
    settings: dict[str, object] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    if config.name == "sgd":
        settings |= {"momentum": config.momentum, "nesterov": config.nesterov}
    return _CLASSES[config.name](_groups(config, model), **settings)  # type: ignore[arg-type]


def set_learning_rate_(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of every group, times the group's factor if it has one."""
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


def with_row(
    config: TrainConfig, row: str, *, lr: float | None = None, weight_decay: float | None = None
) -> TrainConfig:
    """A config with the optimizer of one row of the paper's table.

    Args:
        config: All else is taken from it.
        row: A name of `ROWS`.
        lr: Learning rate; by default the optimizer's usual one. The paper searched it for each row, on 20 % of the
            training images, and does not print what it found.
        weight_decay: Weight decay, searched as well; by default the config's.
    """
    if row not in ROWS:
        raise ValueError(f"unknown row {row!r}; the table has {', '.join(ROWS)}")
    decay = config.optimizer.weight_decay if weight_decay is None else weight_decay
    changes = ROWS[row]
    return replace(
        config,
        optimizer=replace(config.optimizer, lr=lr, weight_decay=decay, **changes["optimizer"]),  # type: ignore[arg-type]
        scaling=replace(config.scaling, **changes.get("scaling", {})),  # type: ignore[arg-type]
    )
