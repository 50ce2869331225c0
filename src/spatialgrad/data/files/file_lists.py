"""Files of a data set by pattern, in a folder or in a plain tar archive that is read in place."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from spatialgrad.data.errors import CorruptDataError, DataError
from spatialgrad.data.files.archives import open_tar, safe_name
from spatialgrad.data.files.image_files import ImageFiles


@dataclass(frozen=True)
class FileList:
    """Files that were found, in the order of their names.

    Attributes:
        root: The folder or the archive.
        spans: First byte and size of each file by its name below the root; zeros in a folder.
        archive: Whether the root is an archive.
    """

    root: Path
    spans: dict[str, tuple[int, int]]
    archive: bool

    def path(self, name: str) -> str:
        """Where a file is, for errors."""
        return os.path.join(self.root, name)

    def select(self, names: Sequence[str]) -> ImageFiles:
        """Some of the files, ready to be read in any process."""
        spans = np.array([self.spans[name] for name in names], dtype=np.int64) if self.archive else None
        return ImageFiles(self.root, np.array([os.fsencode(name) for name in names]), spans)


def find_files(place: Path, patterns: Iterable[str]) -> FileList:
    """Find the files whose names end as one of some patterns.

    Args:
        place: A folder, below which the patterns begin, or a plain tar archive, in which folders may be above them.
        patterns: Such as `train/*.jpg`; a `*` does not go across folders.

    Raises:
        DataError: If the place is neither.
        CorruptDataError: If the archive is damaged, or has a file twice.
    """
    if place.is_dir():
        found = {path.relative_to(place).as_posix(): (0, 0) for pattern in patterns for path in place.glob(pattern)}
        return FileList(place, _sorted(found), archive=False)
    if not (place.is_file() and place.name.endswith(".tar")):
        raise DataError(f"{place} is neither a folder nor a plain tar archive; unpack it there")
    patterns, found = list(patterns), {}
    with open_tar(place) as tar:
        for member in tar:
            name = safe_name(member, place)
            if member.isreg() and any(PurePosixPath(name).match(pattern) for pattern in patterns):
                if name in found:
                    raise CorruptDataError(f"{place} holds {name} twice")
                found[name] = (member.offset_data, member.size)
    return FileList(place, _sorted(found), archive=True)


def _sorted(found: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    # A leading dot marks what a file manager left behind, such as macOS's `._image.png`.
    return {name: found[name] for name in sorted(found) if not PurePosixPath(name).name.startswith(".")}
