"""A run is a folder: the names of its files, who may write to it, and how they are written."""

from __future__ import annotations

import fcntl
import io
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from spatialgrad.train.config.groups import TrainConfig
from spatialgrad.train.config.io import differences, from_dict, to_dict
from spatialgrad.train.config.validation import flag
from spatialgrad.train.errors import ConfigError, FolderInUseError, OtherConfigError, StorageError

CONFIG, ENVIRONMENT, RESULT, LOCK = "config.json", "environment.json", "result.json", "run.lock"
METRICS, TIMINGS = "metrics.jsonl", "timings.jsonl"
SCALINGS, GROWTH, DISTANCES = "scalings.jsonl", "growth.jsonl", "distances.jsonl"
"""What methods log."""
CHECKPOINT, PREVIOUS_CHECKPOINT = "checkpoint.pt", "checkpoint.previous.pt"
DAMAGED_CHECKPOINT = "checkpoint.damaged.pt"
EXAMPLES, EXAMPLES_INDEX = "examples", "examples.json"
"""Folder of pictures, and the file in it that lists them."""
TENSORBOARD = "tensorboard"
WEIGHTS, ONNX = "model.pt", "model.onnx"
"""What exports are called by default."""

UNFINISHED = ".writing"
"""Suffix of a file that was being written when its process was killed."""
LOCK_ATTEMPTS = 5

# These locks do not exclude the process that holds them, so it has to keep track itself.
_HELD: set[Path] = set()


@contextmanager
def locked(folder: Path, name: str = LOCK) -> Iterator[None]:
    """Lock a folder for this process, and create it if necessary.

    The system releases the lock when the process ends, however it ends.

    Args:
        folder: To lock.
        name: Lock file; a folder can have several locks.

    Raises:
        FolderInUseError: If another process holds the lock.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / name, "a+")
    except OSError as error:
        raise StorageError(f"cannot write to {folder}: {error.strerror or error}") from error
    path = folder.resolve() / name
    with file:
        try:
            if path in _HELD:
                raise BlockingIOError
            _lock(file)
        except (BlockingIOError, PermissionError) as error:
            file.seek(0)
            raise FolderInUseError(
                f"{folder} is in use by {file.read().strip() or 'another process'}. Wait until it ends, or choose "
                "another folder with --out."
            ) from error
        _HELD.add(path)
        try:
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}\n")
            file.flush()
            yield
        finally:
            _HELD.discard(path)


def is_locked(folder: Path, name: str = LOCK) -> bool:
    """Whether a process holds the lock of a folder."""
    if folder.resolve() / name in _HELD:  # opening and closing the file would release the lock
        return True
    try:
        with open(folder / name, "r+") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:
        return False
    return False


def claim(folder: Path, config: TrainConfig) -> None:
    """Write a run's config to its folder, or check that the folder holds the same one.

    Raises:
        OtherConfigError: If the folder holds a run with a different config; the message lists the differences.
    """
    path = folder / CONFIG
    if path.exists():
        differing = differences(read_config(folder), config)
        if differing:
            lines = [f"  {flag(name)}: {there!r} there, {now!r} requested" for name, (there, now) in differing.items()]
            header, way_out = f"{folder} holds a run with a different config:", "Choose another folder with --out."
            raise OtherConfigError("\n".join([header, *lines, way_out]))
        return
    strangers = sorted(entry.name for entry in folder.iterdir() if not entry.name.endswith((".lock", UNFINISHED)))
    if strangers:
        raise OtherConfigError(
            f"{folder} is not a run's folder: it holds {', '.join(strangers[:3])} but no {CONFIG}. Choose another "
            "folder with --out."
        )
    write_json(path, to_dict(config))


def read_config(folder: Path) -> TrainConfig:
    """The config of the run in a folder.

    Raises:
        ConfigError: If there is none, or it is invalid.
    """
    path = Path(folder) / CONFIG
    try:
        return from_dict(json.loads(path.read_text()))
    except (OSError, json.JSONDecodeError, AttributeError) as error:
        raise ConfigError(f"{folder} is not a run's folder: {path} cannot be read ({error})") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


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
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if keep_as is not None and path.exists():
            path.replace(keep_as)
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StorageError(f"cannot write {path}: {error.strerror or error}. Existing files are unchanged.") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, values: Any) -> None:
    """Write a JSON file, completely or not at all."""
    with replacing(path) as file:
        file.write(json.dumps(values, indent=2, ensure_ascii=False).encode() + b"\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The entries of a file of JSON lines, without a last line that is still being written."""
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


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

    def cut(self, length: int) -> None:
        """Truncate the file to its length at a checkpoint.

        Raises:
            StorageError: If it is shorter than that.
        """
        there = self.path.stat().st_size if self.path.exists() else 0
        if there < length:
            raise StorageError(
                f"{self.path} has {there} bytes, but had {length} when the checkpoint was written. Restore it, or "
                "choose another folder with --out."
            )
        if there > length:
            self.close()
            os.truncate(self.path, length)

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


def _lock(file: IO[str]) -> None:
    """Take the lock, or raise; `is_locked` in another process holds it for a moment, hence the attempts."""
    for attempt in range(LOCK_ATTEMPTS):
        try:
            # Not flock: worker processes would inherit it, and keep it when this process is killed.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except (BlockingIOError, PermissionError):
            if attempt == LOCK_ATTEMPTS - 1:
                raise
            time.sleep(0.02)


def _drop_unfinished_line(path: Path) -> None:
    """Remove a line that was being written when its process was killed."""
    content = path.read_bytes() if path.is_file() else b""
    if content and not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)


def _sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
