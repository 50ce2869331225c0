"""What a search of RepOptimizer found: the scales in its checkpoint, and the initial weights that follow from them."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from spatialgrad.reparam import LayerScales, UnsupportedLayerError, repopt_init_
from spatialgrad.reparam.repopt.scales import scales_of_state
from spatialgrad.train.config.groups import TrainConfig
from spatialgrad.train.errors import CheckpointError, ConfigError
from spatialgrad.train.runs.checkpoint import load_checkpoint, without_checkpoint
from spatialgrad.train.runs.folder import read_config


def init_from_search_(model: nn.Module, config: TrainConfig) -> None:
    """Initialise a plain network as the merged blocks of the search that the config names, in place.

    Raises:
        ConfigError: If the search is of another network.
    """
    try:
        repopt_init_(model, scales_for(config))
    except (KeyError, UnsupportedLayerError) as error:
        raise ConfigError(
            f"--repopt.scales: the search in {config.repopt.scales} does not fit {config.model.name} at width "
            f"{config.model.width:g}: {error.args[0]}"
        ) from error


def scales_for(config: TrainConfig) -> dict[str, LayerScales]:
    """The scales that a config names."""
    path = config.repopt.scales
    if path is None:
        raise ConfigError(
            f"--method {config.method.name} needs the scales of a search: train one with --method repopt-search, and "
            "pass its folder with --repopt.scales"
        )
    return read_scales(path)


def read_scales(run: Path) -> dict[str, LayerScales]:
    """The scales in the newest checkpoint of a search.

    Raises:
        ConfigError: If the folder holds no run, or one of another method.
        CheckpointError: If it has no checkpoint.
    """
    method = read_config(run).method.name
    if method != "repopt-search":
        raise ConfigError(f"--repopt.scales: {run} was trained with {method}, not with repopt-search")
    state = load_checkpoint(run, lambda text: None)
    if state is None:
        raise CheckpointError(f"--repopt.scales: {without_checkpoint(run)}")
    return scales_of_state(state["model"])
