"""Pre-trained weights of a backbone: from a run of this package, or from a checkpoint file of torchvision's ResNets."""

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
from spatialgrad.train.runs.checkpoint import has_checkpoint, load_checkpoint, without_checkpoint
from spatialgrad.train.runs.folder import RESULT, read_config
from spatialgrad.train.tasks.base import Task


def read_backbone(path: Path) -> dict[str, Tensor]:
    """Read the weights of a run's newest checkpoint, or of a checkpoint file.

    The run's data set is not needed. A file may hold the weights under `state_dict` or `model`, as training scripts
    write them.

    Raises:
        ConfigError: If `path` is missing, is neither a run nor a file of weights, or is a run trained with branches.
        CheckpointError: If a run has no checkpoint that can be read.
    """
    if path.is_dir():
        run = read_config(path)
        if METHODS[run.method.name].merges:
            raise ConfigError(
                f"--model.backbone: {path} was trained with {run.method.name}, and merging its branches removes "
                "BatchNorm; choose a run that was trained with baseline or sgs"
            )
        state = load_checkpoint(path)
        if state is None:
            raise CheckpointError(f"--model.backbone: {without_checkpoint(path)}")
        return _tensors(state["model"], path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise ConfigError(f"--model.backbone: {path} not found; pass the folder of a run or a .pth file") from error
    except Exception as error:  # whatever a damaged or foreign file makes the reader raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"--model.backbone: cannot read weights from {path} ({reason}); save a state_dict with torch.save"
        ) from error
    if isinstance(state, Mapping):
        state = next((state[name] for name in ("state_dict", "model") if name in state), state)
    return _tensors(state, path)


def check_backbone(config: TrainConfig, task: Task, report: Callable[[str], None]) -> None:
    """Raise if the backbone of a new run cannot be loaded, before the run claims its folder.

    Args:
        config: Of the run.
        task: Of the run.
        report: Called with a message if the backbone comes from an unfinished run.
    """
    path = config.model.backbone
    if path is not None and not has_checkpoint(config.folder):
        load_backbone(task.build_model(), path, read_backbone(path))
        if path.is_dir() and not (path / RESULT).exists():
            report(f"--model.backbone: the run in {path} has not finished; using its newest checkpoint.")


def load_backbone(model: nn.Module, path: Path, state: Mapping[str, Tensor]) -> None:
    """Load the weights that `read_backbone` read from `path` into a network, in place.

    Raises:
        ConfigError: If they do not fit.
    """
    try:
        load_encoder_(model, state, source=str(path))
    except EncoderWeightsError as error:
        raise ConfigError(f"--model.backbone: {error}") from error


def _tensors(state: Any, path: Path) -> dict[str, Tensor]:
    if not isinstance(state, Mapping) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise ConfigError(f"--model.backbone: {path} does not hold a state_dict of weights")
    return dict(state)
