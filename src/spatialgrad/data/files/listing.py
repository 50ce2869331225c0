"""Lists of files, in a folder or in an uncompressed tar archive that is read in place."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np

from spatialgrad.data.errors import CorruptDataError, DataError
from spatialgrad.data.files.archives import open_tar

BELOW = "/**"
"""A pattern that ends in this matches all files below the folders that match its beginning."""


@dataclass(frozen=True, eq=False)
class FileList:
    """Files that any process can read.

    Attributes:
        root: The folder or the archive.
        names: Their names below the root, as an array of bytes: a list of a million strings would be copied into
            every worker process, because even reading a Python object writes to its memory.
        spans: In an archive, first byte and size of each file, shape (files, 2); None in a folder.
    """

    root: Path
    names: np.ndarray
    spans: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.names)

    def relative_names(self) -> list[str]:
        """The name of each file below the root."""
        return [os.fsdecode(name) for name in self.names.tolist()]

    def name(self, index: int) -> str:
        """The whole name of file `index`, for errors."""
        return os.path.join(self.root, os.fsdecode(bytes(self.names[index])))

    def read(self, index: int) -> bytes:
        """The content of file `index`."""
        with self.open(index) as file:
            try:
                return file.read()
            except OSError as error:
                raise DataError(f"{self.name(index)} cannot be read ({error})") from error

    def open(self, index: int) -> IO[bytes]:
        """Open file `index` to read parts of it.

        Raises:
            DataError: If it cannot be read.
        """
        try:
            if self.spans is None:
                return Path(self.name(index)).open("rb")
            start, size = self.spans[index].tolist()
            with self.root.open("rb") as file:
                file.seek(start)
                return io.BytesIO(file.read(size))
        except OSError as error:
            raise DataError(f"{self.name(index)} cannot be read ({error})") from error

    def sizes(self) -> np.ndarray:
        """The number of bytes of each file, int64.

        Raises:
            DataError: If a file is not there any more.
        """
        if self.spans is not None:
            return self.spans[:, 1]
        try:
            return np.array([os.stat(self.name(index)).st_size for index in range(len(self))], dtype=np.int64)
        except OSError as error:
            raise DataError(f"{error.filename} cannot be read ({error})") from error

    def select(self, indices: Sequence[int] | np.ndarray) -> FileList:
        """The files at `indices`, in that order."""
        rows = np.asarray(indices, dtype=np.int64)
        return FileList(self.root, self.names[rows], None if self.spans is None else self.spans[rows])


def find_files(place: Path, patterns: Iterable[str]) -> FileList:
    """Find files by their names, sorted by name; hidden files and those in hidden folders are left out.

    Args:
        place: A folder, to which the patterns are relative, or an uncompressed tar archive, in which the files may also
            be in a folder further down.
        patterns: Such as `train/*.jpg`, where `*` does not match a slash, or `*/*/**` for all files below. Links are
            followed, but not those below a `**`, which could form a circle.

    Raises:
        DataError: If the place is neither a folder nor an uncompressed tar archive.
        CorruptDataError: If the archive is damaged or contains a link.
    """
    patterns = list(patterns)
    if place.is_dir():
        names = sorted({name for pattern in patterns for name in _names_in_folder(place, pattern) if not hidden(name)})
        return FileList(place, np.array([os.fsencode(name) for name in names], dtype=bytes))
    if not (place.is_file() and place.name.endswith(".tar")):
        raise DataError(f"{place} is neither a folder nor an uncompressed tar archive; extract it first")
    wanted = re.compile("|".join(map(_matcher, patterns)), re.DOTALL)
    spans: dict[str, tuple[int, int]] = {}
    with open_tar(place) as tar:
        for member in tar:
            name = str(PurePosixPath(member.name))
            if hidden(name) or not wanted.fullmatch(name) or member.isdir():
                continue
            if not member.isreg():
                raise CorruptDataError(f"{place} contains {name!r}, which is neither a plain file nor a folder")
            spans[name] = (member.offset_data, member.size)
    names = sorted(spans)
    array = np.array([os.fsencode(name) for name in names], dtype=bytes)
    return FileList(place, array, np.array([spans[name] for name in names], dtype=np.int64).reshape(-1, 2))


def hidden(name: str) -> bool:
    """Whether a part of a path is what a file manager or a notebook leaves behind: `._1.png`, `.ipynb_checkpoints`."""
    return any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))


def _names_in_folder(folder: Path, pattern: str) -> Iterator[str]:
    if not pattern.endswith(BELOW):
        yield from (path.relative_to(folder).as_posix() for path in folder.glob(pattern) if not path.is_dir())
        return
    for top in folder.glob(pattern.removesuffix(BELOW)):
        for path, _, file_names in os.walk(top):
            below = os.path.relpath(path, folder).replace(os.sep, "/")
            yield from (f"{below}/{name}" for name in file_names)


def _matcher(pattern: str) -> str:
    """A regular expression for the names in an archive."""
    name = "[^/]*".join(map(re.escape, pattern.removesuffix(BELOW).split("*")))
    return f"(?:.*/)?{name}/.+" if pattern.endswith(BELOW) else f"(?:.*/)?{name}"
