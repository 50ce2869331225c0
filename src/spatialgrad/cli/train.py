"""``spatialgrad train``, ``resume`` and ``export``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import tyro

from spatialgrad.train import RECIPES, TrainConfig, export_onnx, export_weights, recipe

Run = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]


def train_command(default: TrainConfig) -> Callable[..., None]:
    """The subcommand `train`.

    Args:
        default: The config whose fields the flags change.
    """

    def train(
        config: Annotated[TrainConfig, tyro.conf.arg(name="")] = default,
        recipe: Annotated[
            str | None,
            tyro.conf.arg(metavar="NAME", help=f"Use the values of a recipe as defaults: {', '.join(RECIPES)}."),
        ] = None,
    ) -> None:
        """Train a network. Run the same command again to resume where it stopped."""
        run_training(config)

    return train


def default_config(arguments: Sequence[str]) -> TrainConfig:
    """The config of the `--recipe` on a command line: the defaults of all other flags."""
    for position, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name == "--recipe" and arguments[0] == "train":
            following = arguments[position + 1] if position + 1 < len(arguments) else ""
            return recipe(value or following)
    return TrainConfig()


def run_training(config: TrainConfig) -> None:
    """Train; the engine takes seconds to import, so it is loaded only now."""
    from spatialgrad.train import train

    train(config)


def resume(run: Run) -> None:
    """Resume the run in a folder.

    Args:
        run: Folder of the run.
    """
    from spatialgrad.train import resume

    resume(run)


def export(run: Run, onnx: bool = False, out: Path | None = None) -> None:
    """Export the merged network of a run: its weights, or the whole network as ONNX.

    Args:
        run: Folder of the run.
        onnx: Write ONNX, and compare its output with the network's.
        out: File to write; by default model.pt or model.onnx in the run's folder.
    """
    print((export_onnx if onnx else export_weights)(run, out))
