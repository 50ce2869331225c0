"""What the registry knows about a data set before any file of it is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spatialgrad.data.errors import DataError, MissingDataError, UnreachableError

Report = Callable[[str], None]
"""Takes a line of text, such as `print`."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a data set lies, how it is read and how it is got."""

    name: str
    description: str
    places: Callable[[Path], Sequence[Path]]
    """Given the data root: where it may lie, the best place first."""
    read: Callable[[Path], Any]
    """Given one of the places. What it returns depends on the task; an `ImageDataset` for classification."""
    fetch: Callable[[Path, Report], Path] | None
    """Given the data root: get it, and say where it is now. None if no host serves it to everyone."""
    by_hand: Callable[[Path], str]
    """Given the data root: which file to put where."""
    task: str = "classification"
    """What is learned from it: classification, segmentation or pose."""
    again: Callable[[Path], str] | None = None
    """Given the place where it is damaged: what to do, if it is not to remove it and to get it again."""

    def locate(self, root: Path) -> Path | None:
        """The first of its places that is there."""
        return next((place for place in self.places(root) if place.exists()), None)

    def load(self, root: Path) -> Any:
        """Read it from the first of its places that is there."""
        place = self.locate(root)
        if place is None:
            places = ", ".join(str(place) for place in self.places(root))
            command = f"To get it: spatialgrad data get {self.name}\n" if self.fetch else ""
            raise MissingDataError(f"{self.name} is in none of {places}.\n{command}By hand: {self.by_hand(root)}")
        try:
            return self.read(place)
        except OSError as error:
            raise DataError(f"{self.name} cannot be read ({error})") from error
        except DataError as error:
            raise type(error)(f"{error}.\nTo get it again: {self._remedy(place)}") from error

    def get(self, root: Path, report: Report) -> Path:
        """Get it, unless it is there already."""
        place = self.locate(root)
        if place is not None:
            report(f"{self.name} is there already: {place}")
            return place
        if self.fetch is None:
            raise UnreachableError(f"{self.name} cannot be downloaded by this command.\nBy hand: {self.by_hand(root)}")
        try:
            place = self.fetch(root, report)
        except UnreachableError as error:
            raise UnreachableError(f"{error}.\nBy hand: {self.by_hand(root)}") from error
        except OSError as error:
            raise DataError(f"{self.name} cannot be written to {root} ({error})") from error
        report(f"{self.name} is in {place}")
        return place

    def _remedy(self, place: Path) -> str:
        if self.again is not None:
            return self.again(place)
        if self.fetch is None:
            return f"put the right file into {place}; which one is named above"
        return f"remove {place} and run `spatialgrad data get {self.name}`"
