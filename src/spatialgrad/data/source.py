"""What the registry knows about a data set before any of its files is opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spatialgrad.data.errors import DataError, MissingDataError, UnreachableError
from spatialgrad.data.files.download import Progress


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
    task: str = "classification"
    """The task it is for: classification, segmentation or pose."""
    repair: Callable[[Path], str] | None = None
    """Given the place of a damaged copy: what to do; by default remove it and download it again."""

    def locate(self, root: Path) -> Path | None:
        """The first of its places that exists."""
        return next((place for place in self.places(root) if place.exists()), None)

    def load(self, root: Path) -> Any:
        """Read it from the first of its places that exists."""
        place = self.locate(root)
        if place is None:
            raise MissingDataError(self._how_to_get(root))
        try:
            return self.read(place)
        except OSError as error:
            raise DataError(f"{self.name} cannot be read ({error})") from error
        except DataError as error:
            raise type(error)(f"{error}.\nTo fix it: {self._remedy(place)}") from error

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

    def _how_to_get(self, root: Path) -> str:
        places = self.places(root)
        lines = [f"{self.name} not found in {', '.join(map(str, places))}."]
        if any(place.is_relative_to(root) for place in places):
            lines.append("If it is in another folder: set $SPATIALGRAD_DATA or --data.root.")
        if self.fetch is not None:
            lines.append(f"Download: spatialgrad data get {self.name}")
        return "\n".join([*lines, f"Manual download: {self.manual(root)}"])

    def _remedy(self, place: Path) -> str:
        if self.repair is not None:
            return self.repair(place)
        if self.fetch is None:
            return f"replace the file named above in {place}"
        return f"remove {place} and run `spatialgrad data get {self.name}`"
