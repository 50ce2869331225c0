"""From a finished training to the network that is used: merged, compared, loaded again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spatialgrad.train.config.groups import TrainConfig
from spatialgrad.train.engine.optim import build_optimizer
from spatialgrad.train.errors import CheckpointError, DeployError
from spatialgrad.train.methods import METHODS
from spatialgrad.train.runs.checkpoint import load_checkpoint
from spatialgrad.train.runs.folder import read_config
from spatialgrad.train.tasks import TASKS, Task

TOLERANCE = {"32-true": 0.002, "64-true": 0.002}
"""How far the headline metric may move when branches are merged: rounding turns a few images that are on the brink."""
COARSE_TOLERANCE = 0.02
"""The same in 16 bits."""
IMAGES_ON_THE_BRINK = 2
"""So many images may turn in any case, however few there are."""


def check_agreement(trained: Mapping[str, float], deployed: Mapping[str, float], task: Task, precision: str) -> None:
    """Raise unless the merged network does what the trained one did.

    Raises:
        DeployError: If the headline metric moved by more than rounding explains.
    """
    before, now = trained[task.headline], deployed[task.headline]
    allowed = max(TOLERANCE.get(precision, COARSE_TOLERANCE), IMAGES_ON_THE_BRINK / task.num_test)
    if not abs(before - now) <= allowed:  # also for NaN
        raise DeployError(
            f"{task.headline} was {before:.4f} before the branches were merged and is {now:.4f} now; at most "
            f"{allowed:.4f} is rounding. The checkpoint holds the network with its branches."
        )


def rebuild_model(task: Task, state: Mapping[str, Any]) -> nn.Module:
    """The network of a checkpoint as it was in training, on the CPU."""
    config = task.config
    method = METHODS[config.method.name](config)
    torch.manual_seed(config.seed)
    model = task.build_model()
    method.prepare_(model)
    if method.grows:
        method.attach(model, build_optimizer(config.optimizer, model))
        method.load_state_dict(state["method"])
    model.load_state_dict(state["model"])
    return model


def load_model(folder: Path | str, *, merged: bool = True) -> nn.Module:
    """The network of a run, in evaluation mode on the CPU, from its newest checkpoint.

    Args:
        folder: Of the run, finished or not.
        merged: As it is deployed; otherwise with the branches that it was trained with.

    Raises:
        ConfigError: If the folder holds no run.
        CheckpointError: If the run has no checkpoint that can be read.
        DataError: If the run's data set, which knows the number of classes, is not there any more.
    """
    return load_task_and_model(folder, merged=merged)[1]


def load_task_and_model(folder: Path | str, *, merged: bool = True) -> tuple[Task, nn.Module]:
    """As `load_model`, with the task that the network was trained for."""
    folder = Path(folder)
    config: TrainConfig = read_config(folder)
    state = load_checkpoint(folder, lambda text: None)
    if state is None:
        raise CheckpointError(f"{folder} holds no checkpoint yet")
    task = TASKS[config.task](config, torch.device("cpu"))
    model = rebuild_model(task, state)
    if merged:
        model = METHODS[config.method.name](config).finish(model).model
    return task, model.eval()
