"""Files that exist in memory only, for data sets that are generated."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from spatialgrad.data.files.listing import FileList


@dataclass(frozen=True, eq=False)
class MemoryFiles(FileList):
    """Files in memory, with names for messages.

    Attributes:
        contents: The bytes of each file.
    """

    contents: tuple[bytes, ...] = ()

    @classmethod
    def named(cls, root: str, contents: Sequence[bytes]) -> MemoryFiles:
        """Files numbered from 1, such as `figures-mini/00001.png`."""
        names = np.array([f"{number:05d}.png".encode() for number in range(1, len(contents) + 1)])
        return cls(Path(root), names, None, tuple(contents))

    def open(self, index: int) -> IO[bytes]:
        """Open file `index` to read parts of it."""
        return io.BytesIO(self.contents[index])

    def select(self, indices: Sequence[int] | np.ndarray) -> MemoryFiles:
        """The files at `indices`, in that order."""
        rows = np.asarray(indices, dtype=np.int64)
        return MemoryFiles(self.root, self.names[rows], None, tuple(self.contents[row] for row in rows.tolist()))
