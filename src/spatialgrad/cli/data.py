"""``spatialgrad data``: list and download data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import tyro

from spatialgrad.data.registry import find_source, get_dataset_files, list_datasets
from spatialgrad.train.flags import as_config_error

PRESENT, MISSING = "✓", "·"

DataRoot: TypeAlias = Annotated[
    Path | None, tyro.conf.arg(name="data.root", help="Folder of the data sets; by default $SPATIALGRAD_DATA.")
]
"""The flag `--data.root`, as `spatialgrad train` has it."""


def data_list(root: DataRoot = None) -> None:
    """List the data sets, and whether they are there."""
    sets = list_datasets(root)
    for info in sets:
        print(f"{PRESENT if info.present else MISSING} {info.name:<20} {info.task}: {info.description}")
        print(f"  {'':<20} {info.place}")
        for line in info.how_to_get.splitlines():
            print(f"  {'':<20} {line}")
    missing = sum(not info.present for info in sets)
    print(f"\n{PRESENT} present: {len(sets) - missing}   {MISSING} missing: {missing}")


def data_get(name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")], root: DataRoot = None) -> None:
    """Download a data set, unless it is there already.

    Args:
        name: A name from `spatialgrad data list`, or folder:PATH to unpack an archive of class folders.
        root: Folder of the data sets; by default $SPATIALGRAD_DATA.
    """
    with as_config_error():
        find_source(name)
    get_dataset_files(name, root)
