"""``spatialgrad train``, ``resume`` and ``export``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from spatialgrad.cli.importing import importing
from spatialgrad.train.config import TrainConfig
from spatialgrad.train.recipes import RECIPES, recipe

Run = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
RecipeName = Annotated[
    str | None,
    tyro.conf.arg(metavar="NAME", help=f"Use the values of a recipe as defaults: {', '.join(RECIPES)}."),
]
"""The flag `--recipe`; `default_config` reads it before the others."""


def train_command(default: TrainConfig) -> Callable[..., None]:
    """The subcommand `train`.

    Args:
        default: The config whose fields the flags change.
    """

    def train(
        config: Annotated[TrainConfig, tyro.conf.arg(name="")] = default,
        recipe: RecipeName = None,
    ) -> None:
        """Train a network. Run the same command again to resume where it stopped."""
        run_training(config)

    return train


def default_config(arguments: Sequence[str]) -> TrainConfig:
    """The config of the `--recipe` on a command line: the defaults of all other flags.

    A recipe's learning rate is that of its optimizer; another `--optimizer.name` has its own default.
    """
    name = _value_of("--recipe", arguments)
    if name is None:
        return TrainConfig()
    config, optimizer = recipe(name), _value_of("--optimizer.name", arguments)
    if optimizer in (None, config.optimizer.name):
        return config
    return replace(config, optimizer=replace(config.optimizer, lr=None))


def _value_of(flag: str, arguments: Sequence[str]) -> str | None:
    """The last value of a flag on a command line, or None."""
    found = None
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, _, value = argument.partition("=")
        if name == flag:
            found = value or following
    return found


def run_training(config: TrainConfig) -> None:
    """Train."""
    with importing():
        from spatialgrad.train.loop import train

    train(config)


def resume(run: Run) -> None:
    """Resume the run in a folder.

    Args:
        run: Folder of the run.
    """
    with importing():
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
    with importing():
        from spatialgrad.train.export import export_onnx, export_weights
        from spatialgrad.train.quantize import describe_export, export_int8

    if int8:
        found = export_int8(run, out, calibration_images=calibration_images, calibration=calibration)
        print(describe_export(found))
    else:
        print((export_onnx if onnx else export_weights)(run, out))
