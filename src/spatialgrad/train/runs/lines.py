"""The logs of a run: files of JSON lines, and how they follow its checkpoints."""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from spatialgrad.train.errors import DamagedFileError, StorageError
from spatialgrad.train.runs.folder import METRICS, parse_lines


class Logs:
    """The logs that are cut to their lengths at a checkpoint when a run resumes; the metrics are one of them.

    Args:
        folder: Of the run.
        names: Of the files; others are added with `METRICS`.
    """

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._lines = {name: Lines(folder / name) for name in (METRICS, *names)}

    def append(self, name: str, values: dict[str, Any]) -> None:
        """Add a line to one of them."""
        self._lines[name].append(values)

    def sync(self) -> dict[str, int]:
        """Flush everything to disk, and return the length of each file."""
        return {name: lines.sync() for name, lines in self._lines.items()}

    def check(self, lengths: Mapping[str, int], epochs: int) -> None:
        """Raise unless the logs are complete up to their lengths at a checkpoint.

        Args:
            lengths: By name.
            epochs: Number of epochs that were complete at the checkpoint.

        Raises:
            StorageError: If a file is shorter.
            DamagedFileError: If the metrics are not those of so many epochs.
        """
        for name, lines in self._lines.items():
            lines.check_length(lengths.get(name, 0))
        path = self._lines[METRICS].path
        content = path.read_bytes() if path.exists() else b""
        way_out = "Restore it, or choose another folder with --out"
        try:
            found = len(parse_lines(path, content[: lengths.get(METRICS, 0)]))
        except DamagedFileError as error:
            raise DamagedFileError(f"{error}. {way_out}.") from error
        if found != epochs:
            raise DamagedFileError(
                f"{path} has {found} lines, but the checkpoint was written after {epochs} epochs. {way_out}."
            )

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Truncate the files to their lengths at a checkpoint.

        Raises:
            StorageError: If one is shorter than that.
        """
        for name, lines in self._lines.items():
            lines.cut(lengths.get(name, 0))

    def start_over(self) -> list[str]:
        """Empty the logs of a run without a checkpoint; those of whole epochs are renamed, and their names returned."""
        metrics = self._lines[METRICS].path
        if metrics.exists() and b"\n" in metrics.read_bytes():
            return [lines.set_aside().name for lines in self._lines.values() if lines.path.exists()]
        self.cut({})
        return []

    def close(self) -> None:
        """Close all files."""
        for lines in self._lines.values():
            lines.close()


class Lines:
    """A file of JSON lines that only grows, and can be truncated to its length at a checkpoint.

    Args:
        path: The file; created with the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: io.FileIO | None = None

    def append(self, values: dict[str, Any]) -> None:
        """Add a line."""
        rest = json.dumps(values, ensure_ascii=False).encode() + b"\n"
        try:
            while rest:  # the system may write only a part
                rest = rest[self._opened().write(rest) :]
        except OSError as error:
            raise StorageError(
                f"cannot write to {self.path}: {error.strerror or error}. The checkpoints are unchanged."
            ) from error

    def sync(self) -> int:
        """Flush everything to disk, and return the length of the file."""
        if self._file is None:
            return self.path.stat().st_size if self.path.exists() else 0
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def check_length(self, length: int) -> int:
        """The length of the file.

        Raises:
            StorageError: If it is shorter than at a checkpoint.
        """
        there = self.path.stat().st_size if self.path.exists() else 0
        if there < length:
            raise StorageError(
                f"{self.path} has {there} bytes, but had {length} when the checkpoint was written. Restore it, or "
                "choose another folder with --out."
            )
        return there

    def cut(self, length: int) -> None:
        """Truncate the file to its length at a checkpoint.

        Raises:
            StorageError: If it is shorter than that.
        """
        if self.check_length(length) > length:
            self.close()
            os.truncate(self.path, length)

    def set_aside(self) -> Path:
        """Rename the file, so that the next line begins a new one; returns where it is now."""
        self.close()
        names = (self.path.with_stem(f"{self.path.stem}.old-{number}") for number in itertools.count(1))
        return self.path.rename(next(path for path in names if not path.exists()))

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> io.FileIO:
        if self._file is None:
            _drop_unfinished_line(self.path)
            # Unbuffered: a buffer would keep what a full disk did not take.
            self._file = open(self.path, "ab", buffering=0)
        return self._file


def _drop_unfinished_line(path: Path) -> None:
    """Remove a line that was being written when its process was killed."""
    content = path.read_bytes() if path.is_file() else b""
    if content and not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)
