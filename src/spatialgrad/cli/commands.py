"""The subcommands of ``spatialgrad``, each a thin function over the package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import tyro
from tyro.extras import SubcommandApp

from spatialgrad.cli.demo import DemoConfig, run_demo
from spatialgrad.cli.study import build_study_app
from spatialgrad.data import get_dataset_files, list_datasets
from spatialgrad.train import (
    RECIPES,
    TrainConfig,
    export_onnx,
    export_weights,
    recipe,
)
from spatialgrad.train.exit_codes import exit_code_of

Root = Annotated[Path | None, tyro.conf.arg(help="Folder of the data sets; by default $SPATIALGRAD_DATA.")]


def demo(config: Annotated[DemoConfig, tyro.conf.arg(name="")] = DemoConfig()) -> None:  # noqa: B008 (frozen)
    """Train with and without scaling on the images that come with the package (under 3 minutes on 2 cores)."""
    run_demo(config)


def train_command(default: TrainConfig) -> Callable[..., None]:
    """The subcommand `train`, with the config that its flags change."""

    def train(
        config: Annotated[TrainConfig, tyro.conf.arg(name="")] = default,
        recipe: Annotated[
            str | None,
            tyro.conf.arg(metavar="NAME", help=f"Start from a recipe's values: {', '.join(RECIPES)}."),
        ] = None,
    ) -> None:
        """Train a network; the same command again goes on where it was left."""
        run_training(config)

    return train


def run_training(config: TrainConfig) -> None:
    """Train; loaded only now, as it takes seconds."""
    from spatialgrad.train import train

    train(config)


def resume(run: tyro.conf.Positional[Path]) -> None:
    """Go on with the run in a folder.

    Args:
        run: Folder of the run.
    """
    from spatialgrad.train import resume as go_on

    go_on(run)


def export(run: tyro.conf.Positional[Path], onnx: bool = False, out: Path | None = None) -> None:
    """Write a run's network, merged: its weights, or the whole network as ONNX.

    Args:
        run: Folder of the run.
        onnx: Write ONNX, compared with the network by running both.
        out: File to write; by default model.pt or model.onnx in the run's folder.
    """
    print((export_onnx if onnx else export_weights)(run, out))


def data_list(root: Root = None) -> None:
    """List the data sets, and whether they are there."""
    for info in list_datasets(root):
        print(
            f"{'✓' if info.present else '·'} {info.name:<20} {info.task}: {info.description}\n  {'':<20} {info.place}"
        )


def data_get(name: tyro.conf.Positional[str], root: Root = None) -> None:
    """Get the files of a data set.

    Args:
        name: One of `spatialgrad data list`, or folder:PATH to unpack an archive of class folders.
        root: Folder of the data sets; by default $SPATIALGRAD_DATA.
    """
    get_dataset_files(name, root)


def report(
    studies: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="STUDY...")],
    out: Path | None = None,
) -> None:
    """Write tables and figures of studies, finished or not: report.md, and index.html that needs no network.

    Args:
        studies: Folders of studies, or names of studies whose folders are in studies/.
        out: Folder to write to; by default report/ in the study's folder, or beside the first of several.
    """
    from spatialgrad.report.write import write_report

    print(write_report(studies, out))


def build_app(default: TrainConfig) -> SubcommandApp:
    """All subcommands.

    Args:
        default: The config that the flags of `train` change.
    """
    data = SubcommandApp()
    data.command(name="list")(data_list)
    data.command(name="get")(data_get)
    app = SubcommandApp()
    app.command(name="demo")(demo)
    app.command(name="train")(train_command(default))
    app.command(name="resume")(resume)
    app.command(name="export")(export)
    app.command(name="report")(report)
    app.command(data, name="data", help="List data sets, and get them.")
    app.command(build_study_app(), name="study", help="The paper's tables and figures: list, show, run.")
    return app


def run(arguments: Sequence[str] | None = None) -> int:
    """Parse and run; errors that a user can mend become a message and an exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)

    def parse_and_run() -> None:
        app = build_app(_default_config(arguments))
        app.cli(prog="spatialgrad", description="Spatial gradient scaling for ConvNets.", args=arguments)

    return exit_code_of(parse_and_run)


def _default_config(arguments: Sequence[str]) -> TrainConfig:
    """The config of the recipe that is asked for: it must be known before the other flags are understood."""
    for position, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name == "--recipe" and arguments[0] == "train":
            following = arguments[position + 1] if position + 1 < len(arguments) else ""
            return recipe(value or following)
    return TrainConfig()
