"""What a new run starts from: pre-trained weights, or the scales that a search of RepOptimizer found.

A resumed run needs none of it: its weights are in its checkpoint, and what they were loaded from may be gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spatialgrad.models.resnet_encoder import ResNetEncoder, load_encoder_
from spatialgrad.reparam import LayerScales
from spatialgrad.reparam.repopt.scales import scales_of_state
from spatialgrad.train.config import TrainConfig
from spatialgrad.train.errors import CheckpointError, ConfigError
from spatialgrad.train.methods import find_method
from spatialgrad.train.run import Run


@dataclass(frozen=True)
class StartWeights:
    """What a new run starts from, read from its files."""

    backbone: Mapping[str, Tensor] | None = None
    scales: Mapping[str, LayerScales] | None = None


def read_start_weights(config: TrainConfig, report: Callable[[str], None]) -> StartWeights:
    """Read what the config of a new run names.

    Args:
        config: Of the run.
        report: Called with a message if a run to start from has not finished.

    Raises:
        ConfigError: If it cannot be read, or the method needs scales and the config names none.
        CheckpointError: If a run to start from has no checkpoint.
    """
    backbone, scales = config.model.backbone, config.repopt.scales
    if config.method.name == "repopt" and scales is None:
        raise ConfigError(
            "--method repopt needs the scales of a search: train one with --method repopt-search, and pass its folder "
            "with --repopt.scales"
        )
    for flag, path in (("--model.backbone", backbone), ("--repopt.scales", scales)):
        if path is not None and path.is_dir() and not Run.open(path).is_finished:
            report(f"{flag}: the run in {path} has not finished; using its newest checkpoint.")
    return StartWeights(
        backbone=None if backbone is None else read_backbone(backbone),
        scales=None if scales is None else read_scales(scales),
    )


def read_backbone(path: Path) -> dict[str, Tensor]:
    """Read the weights of a run's newest checkpoint, or of a checkpoint file.

    The run's data set is not needed. A file may hold the weights under `state_dict` or `model`, as training scripts
    write them.

    Raises:
        ConfigError: If `path` is missing, is neither a run nor a file of weights, or is a run trained with branches.
        CheckpointError: If a run has no checkpoint that can be read.
    """
    if path.is_dir():
        run = Run.open(path)
        method = run.config.method.name
        if find_method(method).merges:
            raise ConfigError(
                f"--model.backbone: {path} was trained with {method}, and merging its branches removes BatchNorm; "
                "choose a run that was trained with baseline or sgs"
            )
        return _tensors(_checkpoint(run, "--model.backbone")["model"], path)
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


def load_weights_(model: nn.Module, state: Mapping[str, Tensor], *, source: str) -> None:
    """Load pre-trained weights into the backbone of a dense network, or into any other; its last layer may differ.

    Args:
        model: The newly built network.
        state: Of `read_backbone`.
        source: Where the weights come from, for messages.

    Raises:
        ValueError: If they do not fit. Nothing is loaded then.
    """
    if isinstance(getattr(model, "backbone", None), ResNetEncoder):
        load_encoder_(model, state, source=source)
        return
    own = model.state_dict()
    last = [name for name, _ in model.named_parameters()][-1].rpartition(".")[0]
    found = {name: value for name, value in state.items() if name in own and value.shape == own[name].shape}
    for name, value in own.items():
        if name not in found and name.rpartition(".")[0] != last:
            there = f"{tuple(state[name].shape)} there" if name in state else "missing there"
            raise ValueError(
                f"{source} does not fit this network: {name!r} is {tuple(value.shape)} here, and {there}; only the "
                f"last layer ({last}) may differ"
            )
    model.load_state_dict({**own, **found})


def read_scales(path: Path) -> dict[str, LayerScales]:
    """The scales in the newest checkpoint of a search.

    Raises:
        ConfigError: If the folder holds no run, or one of another method.
        CheckpointError: If it has no checkpoint that can be read.
    """
    run = Run.open(path)
    method = run.config.method.name
    if method != "repopt-search":
        raise ConfigError(f"--repopt.scales: {path} was trained with {method}, not with repopt-search")
    return scales_of_state(_checkpoint(run, "--repopt.scales")["model"])


def _checkpoint(run: Run, flag: str) -> dict[str, Any]:
    try:
        return run.checkpoint()
    except CheckpointError as error:
        raise CheckpointError(f"{flag}: {error}") from error


def _tensors(state: Any, path: Path) -> dict[str, Tensor]:
    if not isinstance(state, Mapping) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        raise ConfigError(f"--model.backbone: {path} does not hold a state_dict of weights")
    return dict(state)
