"""``spatialgrad data``: list and download data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import tyro
from tyro.extras import SubcommandApp

from spatialgrad.data import get_dataset_files, list_datasets

DataRoot: TypeAlias = Annotated[
    Path | None, tyro.conf.arg(name="data.root", help="Folder of the data sets; by default $SPATIALGRAD_DATA.")
]
"""The flag `--data.root`, as `spatialgrad train` has it."""


def data_list(root: DataRoot = None) -> None:
    """List the data sets, and whether they are there."""
    for info in list_datasets(root):
        print(
            f"{'✓' if info.present else '·'} {info.name:<20} {info.task}: {info.description}\n  {'':<20} {info.place}"
        )


def data_get(name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")], root: DataRoot = None) -> None:
    """Download a data set, unless it is there already.

    Args:
        name: A name from `spatialgrad data list`, or folder:PATH to unpack an archive of class folders.
        root: Folder of the data sets; by default $SPATIALGRAD_DATA.
    """
    get_dataset_files(name, root)


def build_app() -> SubcommandApp:
    """The subcommands."""
    app = SubcommandApp()
    app.command(name="list")(data_list)
    app.command(name="get")(data_get)
    return app
