"""Data sets by name."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spatialgrad.data import fashion_mnist
from spatialgrad.data.dataset import ImageDataset


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set that can be loaded by its name."""

    name: str
    description: str
    load: Callable[[Path], ImageDataset[Any]]
    """Given the data root."""


SOURCES = {
    source.name: source
    for source in (
        Source(
            name="fashion-mnist-mini",
            description="5,000 + 1,000 grey 28×28 images of clothes, 10 classes, shipped with the package",
            load=lambda root: fashion_mnist.load_mini(),
        ),
    )
}


def data_root(root: str | Path | None = None) -> Path:
    """The folder of the data sets: the argument, else $SPATIALGRAD_DATA, else ~/.cache/spatialgrad."""
    return Path(root or os.environ.get("SPATIALGRAD_DATA") or "~/.cache/spatialgrad").expanduser()


def load_dataset(name: str, root: str | Path | None = None) -> ImageDataset[Any]:
    """Load a data set by its name.

    Args:
        name: One of the registered names, such as `fashion-mnist-mini`.
        root: The folder that holds the data sets; see `data_root`.

    Raises:
        ValueError: If no data set has this name.
        MissingDataError: If it is not there; the message says how to get it.
        CorruptDataError: If a file of it is damaged; the message says which.
    """
    if name not in SOURCES:
        near = difflib.get_close_matches(name, SOURCES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known names: {', '.join(SOURCES)}"
        raise ValueError(f"unknown data set {name!r}; {hint}")
    return SOURCES[name].load(data_root(root))
