"""JSON and JSON lines: read with an error that names the file, written completely or not at all."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import IO, Any

import msgspec

from spatialgrad.train.errors import DamagedFileError, StorageError

UNFINISHED = ".writing"
"""Suffix of a file that was being written when its process was killed."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        FileNotFoundError: If there is no such file.
        DamagedFileError: If it cannot be read, or is not a JSON object.
    """
    return _decoded(_content(path), str(path))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The entries of a file of JSON lines, without a last line that is still being written.

    Raises:
        DamagedFileError: If a line is not a JSON object; the message names the file and the line.
    """
    try:
        # Not splitlines(), which also splits at characters that JSON strings may contain.
        lines = _content(path).split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [_decoded(line, f"line {number} of {path}") for number, line in enumerate(lines, start=1)]


def write_json(path: Path, values: Any) -> None:
    """Write a JSON file, completely or not at all; numbers that JSON does not have (NaN, infinity) become null."""
    with replacing(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(values, enc_hook=path_as_text), indent=2) + b"\n")


def path_as_text(value: Any) -> str:
    """Hook for values that JSON does not have."""
    if not isinstance(value, PurePath):
        raise TypeError(f"{value!r} cannot be written as JSON")
    return str(value)


@contextmanager
def replacing(path: Path, *, keep_as: Path | None = None) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `path` once it is complete and on disk.

    Args:
        path: The file to replace.
        keep_as: Where to move the old file.

    Raises:
        StorageError: If it cannot be written.
    """
    temporary = path.with_name(f".{path.name}{UNFINISHED}")
    try:
        temporary.unlink(missing_ok=True)  # what a killed process left
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if keep_as is not None and path.exists():
            path.replace(keep_as)
        temporary.replace(path)
        _sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise StorageError(f"cannot write {path}: {error.strerror or error}. Existing files are unchanged.") from error


class JsonLines:
    """A file of JSON lines that only grows, and can be truncated to an earlier length.

    Args:
        path: The file; created with the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: io.FileIO | None = None

    def append(self, values: dict[str, Any]) -> None:
        """Add a line.

        Raises:
            StorageError: If it cannot be written.
        """
        rest = msgspec.json.encode(values) + b"\n"
        try:
            if self._file is None:
                # Unbuffered: a buffer would keep what a full disk did not take.
                self._file = open(self.path, "ab", buffering=0)
                self._drop_unfinished_line()
            while rest:  # the system may write only a part
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise StorageError(f"cannot write to {self.path}: {error.strerror or error}") from error

    def sync(self) -> int:
        """Flush everything to disk, and return the length of the file."""
        if self._file is not None:
            os.fsync(self._file.fileno())
        return self._length()

    def cut(self, length: int) -> None:
        """Truncate the file to an earlier length.

        Raises:
            DamagedFileError: If it is shorter than that.
        """
        there = self._length()
        if there < length:
            raise DamagedFileError(f"{self.path} is damaged: {there} bytes, but the checkpoint was written at {length}")
        if there > length:
            self.close()
            os.truncate(self.path, length)

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _length(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def _drop_unfinished_line(self) -> None:
        """Remove a line that was being written when its process was killed."""
        content = self.path.read_bytes() if self.path.is_file() else b""
        if content and not content.endswith(b"\n"):
            os.truncate(self.path, content.rfind(b"\n") + 1)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamagedFileError(f"{path} is damaged ({error})") from error


def _decoded(content: bytes, name: str) -> dict[str, Any]:
    """The JSON object that a text is; an error calls it by a name."""
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise DamagedFileError(f"{name} is damaged ({error})") from error


def _sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
