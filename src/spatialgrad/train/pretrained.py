"""The first weights of a backbone: from a run of this package, or from a checkpoint file of torchvision's ResNets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spatialgrad.models.resnet_encoder import EncoderWeightsError, load_encoder_
from spatialgrad.train.config.groups import TrainConfig
from spatialgrad.train.errors import CheckpointError, ConfigError
from spatialgrad.train.methods import METHODS
from spatialgrad.train.methods.branches import Branched
from spatialgrad.train.methods.dyrep import DyRep
from spatialgrad.train.runs.checkpoint import has_checkpoint, load_checkpoint
from spatialgrad.train.runs.folder import RESULT, read_config
from spatialgrad.train.tasks import Task


def read_backbone(path: Path) -> dict[str, Tensor]:
    """The weights of a run's newest checkpoint, or of a checkpoint file.

    A run does not need its data set for this. A file may hold the weights under `state_dict` or `model`, as training
    scripts write them.

    Raises:
        ConfigError: If there is nothing at `path`, neither a run nor weights, or a run that was trained with branches.
        CheckpointError: If a run has no checkpoint that can be read.
    """
    if path.is_dir():
        run = read_config(path)
        if issubclass(METHODS[run.method.name], Branched | DyRep):
            raise ConfigError(
                f"model.backbone: {path} was trained with {run.method.name}, whose branches take BatchNorm away when "
                "they are merged; choose a run that was trained with baseline or sgs"
            )
        state = load_checkpoint(path, lambda text: None)
        if state is None:
            raise CheckpointError(
                f"model.backbone: {path}, a run of {run.model.name}, holds no checkpoint yet; train it first"
            )
        return _tensors(state["model"], path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise ConfigError(f"model.backbone: {path} is not there; give the folder of a run or a .pth file") from error
    except Exception as error:  # whatever a damaged or foreign file makes the reader raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"model.backbone: {path} cannot be read as a file of weights ({reason}); save a state_dict with torch.save"
        ) from error
    if isinstance(state, Mapping):
        state = next((state[name] for name in ("state_dict", "model") if name in state), state)
    return _tensors(state, path)


def check_backbone(config: TrainConfig, task: Task, report: Callable[[str], None]) -> None:
    """Raise if the backbone that a run would begin with cannot be loaded; before the run claims its folder.

    Args:
        config: Of the run that would begin with it.
        task: What is learned.
        report: Told if the backbone comes from a run that has not been trained to its end.
    """
    path = config.model.backbone
    if path is not None and not has_checkpoint(config.folder):
        load_backbone(task.build_model(), path, read_backbone(path))
        if path.is_dir() and not (path / RESULT).exists():
            report(f"model.backbone: the run in {path} is not finished; its newest checkpoint is taken.")


def load_backbone(model: nn.Module, path: Path, state: Mapping[str, Tensor]) -> None:
    """Load what `read_backbone` has read from `path` into a network, in place.

    Raises:
        ConfigError: If it does not fit.
    """
    try:
        load_encoder_(model, state, source=str(path))
    except EncoderWeightsError as error:
        raise ConfigError(f"model.backbone: {error}") from error


def _tensors(state: Any, path: Path) -> dict[str, Tensor]:
    if not isinstance(state, Mapping) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise ConfigError(f"model.backbone: {path} does not hold a state_dict of weights")
    return dict(state)
