"""Trees of image files, `train/<class>/…` and `val/<class>/…`, in a folder or in a plain tar archive."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from spatialgrad.data.errors import DataError
from spatialgrad.data.files.archives import open_tar, safe_name

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm")


class Entry(NamedTuple):
    """An image file of a tree."""

    split: str
    class_name: str
    name: str
    """Below the tree's root."""
    start: int = 0
    """In an archive, its first byte."""
    size: int = 0


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Image files, ready to be read in any process.

    Attributes:
        root: The folder or the archive.
        names: Their names, as an array of bytes: a list of a million strings would be copied into every
            worker, because even reading a Python object writes to its memory.
        spans: In an archive, first byte and size of each, shape (number, 2).
    """

    root: Path
    names: np.ndarray
    spans: np.ndarray | None

    def name(self, index: int) -> str:
        """Where image `index` is, for errors."""
        return os.path.join(self.root, os.fsdecode(bytes(self.names[index])))

    def read(self, index: int) -> bytes:
        """The content of image `index`."""
        try:
            if self.spans is None:
                return Path(self.name(index)).read_bytes()
            start, size = self.spans[index].tolist()
            with self.root.open("rb") as file:
                file.seek(start)
                return file.read(size)
        except OSError as error:
            raise DataError(f"{self.name(index)} cannot be read ({error})") from error

    def open(self, index: int) -> IO[bytes]:
        """Image `index`, to read a part of it."""
        if self.spans is not None:
            return io.BytesIO(self.read(index))
        try:
            return Path(self.name(index)).open("rb")
        except OSError as error:
            raise DataError(f"{self.name(index)} cannot be read ({error})") from error

    def select(self, indices: np.ndarray) -> ImageFiles:
        """The files at `indices`, in that order."""
        return ImageFiles(self.root, self.names[indices], None if self.spans is None else self.spans[indices])


def scan(place: Path) -> tuple[Path, bool, list[Entry]]:
    """Find the image files of a tree.

    Args:
        place: A folder or a plain tar archive. The tree may lie in the only folder in it.

    Returns:
        The tree's root, whether it is an archive, and its files in the order of their names, which is the
        same on every file system.
    """
    if place.is_dir():
        root = _tree_root(place)
        return root, False, sorted(_scan_folder(root))
    if place.is_file() and place.name.endswith(".tar"):
        return place, True, sorted(_scan_archive(place))
    raise DataError(
        f"{place} is neither a folder nor a plain tar archive; "
        f"a compressed archive is unpacked by: spatialgrad data get folder:{place}"
    )


def _tree_root(place: Path) -> Path:
    folders = [child for child in place.iterdir() if child.is_dir()]
    return folders[0] if len(folders) == 1 and folders[0].name != "train" else place


def _scan_folder(root: Path) -> Iterator[Entry]:
    for split in root.iterdir():
        for class_folder in split.iterdir() if split.is_dir() else ():
            # Splits and classes may be links, as people lay them out; deeper ones could lead in circles.
            for path, _, file_names in os.walk(class_folder):
                for name in file_names:
                    if _is_image(name):
                        relative = os.path.relpath(os.path.join(path, name), root)
                        yield Entry(split.name, class_folder.name, relative)


def _scan_archive(archive: Path) -> Iterator[Entry]:
    with open_tar(archive) as tar:
        members = [(safe_name(member, archive), member) for member in tar]
    files = [(name, member) for name, member in members if member.isreg() and _is_image(name)]
    tops = {name.split("/", 1)[0] for name, _ in members}
    above = 1 if len(tops) == 1 and "train" not in tops else 0
    for name, member in files:
        parts = name.split("/")[above:]
        if len(parts) >= 3:
            yield Entry(parts[0], parts[1], name, member.offset_data, member.size)


def _is_image(name: str) -> bool:
    # A leading dot marks what a file manager left behind, such as macOS's `._cat.jpg`.
    return name.lower().endswith(ENDINGS) and not os.path.basename(name).startswith(".")
