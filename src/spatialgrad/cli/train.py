"""``spatialgrad train``, ``resume`` and ``export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

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


def export(
    run: Run,
    onnx: bool = False,
    int8: bool = False,
    out: Path | None = None,
    calibration_images: int = 512,
    calibration: Literal["minmax", "entropy"] = "minmax",
) -> None:
    """Export the merged network of a run: its weights, or the whole network as ONNX.

    Args:
        run: Folder of the run.
        onnx: Write ONNX, and compare its output with the network's.
        int8: Also write ONNX in INT8, and compare its accuracy with that of the float network on the test images.
        out: File to write; by default model.pt or model.onnx in the run's folder. model.int8.onnx is written beside it.
        calibration_images: For int8: number of training images that the ranges of activations are measured on.
        calibration: For int8: how these ranges are chosen. entropy may cut off rare values, and takes more memory.
    """
    from spatialgrad.train.export import export_onnx, export_weights
    from spatialgrad.train.quantize import describe_export, export_int8

    if int8:
        found = export_int8(run, out, calibration_images=calibration_images, calibration=calibration)
        print(describe_export(found))
    else:
        print((export_onnx if onnx else export_weights)(run, out))
