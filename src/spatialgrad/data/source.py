"""What the registry knows about a data set before any of its files is opened."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spatialgrad.data.errors import DataError, MissingDataError, UnreachableError

Progress = Callable[[str], None]
"""Called with lines of text that tell what is done, such as `print`."""


def data_root(root: str | Path | None = None) -> Path:
    """The folder of the data sets: the argument, else $SPATIALGRAD_DATA, else ~/.cache/spatialgrad."""
    return Path(root or os.environ.get("SPATIALGRAD_DATA") or "~/.cache/spatialgrad").expanduser()


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a data set is stored, how it is read and how it is downloaded."""

    name: str
    description: str
    places: Callable[[Path], Sequence[Path]]
    """Given the data root: the files or folders to look for, in order of preference."""
    read: Callable[[Path], Any]
    """Given one of the places: reads the data set, an `ImageDataset` for classification."""
    fetch: Callable[[Path, Progress], Path] | None
    """Given the data root: downloads or extracts it and returns its place. None if it cannot be downloaded."""
    manual: Callable[[Path], str]
    """Given the data root: instructions for a manual download."""
    metric: str = "accuracy"
    """The metric that a training on it is judged by."""
    repair: Callable[[Path], str] | None = None
    """Given the place of a damaged copy: what to do, if not what `how_to_get` says; empty if errors say it."""
    missing: Callable[[Path], str] | None = None
    """Given the data root: what to say if it was not found; by default where it was looked for and how to get it."""

    def locate(self, root: Path) -> Path | None:
        """The first of its places that exists."""
        return next((place for place in self.places(root) if place.exists()), None)

    def load(self, root: Path) -> Any:
        """Read it from the first of its places that exists."""
        place = self.locate(root)
        if place is None:
            raise MissingDataError(self._missing(root))
        try:
            return self.read(place)
        except OSError as error:
            raise DataError(f"{self.name} cannot be read ({error})") from error
        except DataError as error:
            remedy = self._remedy(place, root)
            raise type(error)(f"{error}.\nTo fix it: {remedy}" if remedy else str(error)) from error

    def get(self, root: Path, progress: Progress) -> Path:
        """Download it, unless it exists already."""
        place = self.locate(root)
        if place is not None:
            progress(f"{self.name} already exists: {place}")
            return place
        if self.fetch is None:
            raise UnreachableError(
                f"{self.name} cannot be downloaded automatically.\nManual download: {self.manual(root)}"
            )
        try:
            place = self.fetch(root, progress)
        except UnreachableError as error:
            raise UnreachableError(f"{error}.\nManual download: {self.manual(root)}") from error
        except OSError as error:
            raise DataError(f"{self.name} cannot be written to {root} ({error})") from error
        progress(f"{self.name} is in {place}")
        return place

    def how_to_get(self, root: Path) -> str:
        """Instructions, each on a line of its own: the command that downloads it, if there is one, and by hand."""
        lines = [f"Download: {get_command(self.name, root)}"] if self.fetch is not None else []
        return "\n".join([*lines, f"Manual download: {self.manual(root)}"])

    def _missing(self, root: Path) -> str:
        if self.missing is not None:
            return self.missing(root)
        places = self.places(root)
        lines = [f"{self.name} not found in {', '.join(map(str, places))}."]
        if any(place.is_relative_to(root) for place in places):
            lines.append("If it is in another folder: set $SPATIALGRAD_DATA or --data.root.")
        return "\n".join([*lines, self.how_to_get(root)])

    def _remedy(self, place: Path, root: Path) -> str:
        if self.repair is not None:
            return self.repair(place)
        if self.fetch is None:
            return f"get the data again: {self.manual(root)}"
        return f"remove {place} and run `{get_command(self.name, root)}`"


def get_command(name: str, root: Path) -> str:
    """The command that downloads a data set into a folder."""
    option = "" if root == data_root() else f" --data.root {shlex.quote(str(root))}"
    return f"spatialgrad data get {shlex.quote(name)}{option}"
