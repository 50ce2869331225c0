"""``spatialgrad train``, ``resume`` and ``export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from spatialgrad.cli.options import ConfigCommand, ConfigFile, RecipeName
from spatialgrad.cli.terminal import program
from spatialgrad.train import config as configs
from spatialgrad.train.config import TrainConfig

Run = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
NewFile = Annotated[Path | None, tyro.conf.arg(metavar="FILE.toml")]


def train(
    config: TrainConfig,
    base: TrainConfig,
    config_file: ConfigFile = None,
    recipe: RecipeName = None,
    save_config: NewFile = None,
) -> None:
    """Train a network. Run the same command again to resume where it stopped.

    Args:
        config: Of the training.
        base: The values of the recipe.
        config_file: Settings.
        recipe: Its name.
        save_config: Write all settings to this file and do not train; --config reads it.
    """
    if save_config is None:
        run_training(config)
        return
    configs.save_config(config, save_config)
    print(f"Wrote {save_config}. Train with it: {program()} train --config {save_config}")


train_command = ConfigCommand(train)


def run_training(config: TrainConfig) -> None:
    """Train."""
    from spatialgrad.train.loop import train

    train(config)


def resume(run: Run) -> None:
    """Resume the run in a folder.

    Args:
        run: Folder of the run.
    """
    from spatialgrad.train.loop import resume

    resume(run)


def export(run: Run, onnx: bool = False, out: Path | None = None) -> None:
    """Export the merged network of a run: its weights, or the whole network as ONNX.

    Args:
        run: Folder of the run.
        onnx: Write ONNX, and compare its output with the network's.
        out: File to write; by default model.pt or model.onnx in the run's folder.
    """
    from spatialgrad.train.export import export_onnx, export_weights

    print((export_onnx if onnx else export_weights)(run, out))
