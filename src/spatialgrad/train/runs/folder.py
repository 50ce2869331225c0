"""A run is a folder: who may write to it, and the files in it."""

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
from spatialgrad.train.errors import ConfigError, FolderInUseError, OtherConfigError, StorageError
from spatialgrad.train.runs.checkpoint import UNFINISHED, replacing

CONFIG, ENVIRONMENT, RESULT = "config.json", "environment.json", "result.json"
METRICS, TIMINGS, LOCK = "metrics.jsonl", "timings.jsonl", "run.lock"
SCALINGS, DISTANCES = "scalings.jsonl", "distances.jsonl"
EXAMPLES, EXAMPLES_INDEX = "examples", "examples.json"
LOCK_ATTEMPTS = 5

# A process does not lock itself out with these locks, so it has to remember.
_HELD: set[Path] = set()


@contextmanager
def locked(folder: Path, name: str = LOCK) -> Iterator[None]:
    """Hold a folder for this process alone, and make it if it is not there.

    The system gives the lock back when the process ends, however it ends.

    Args:
        folder: To hold.
        name: Of the file that is locked; a folder can be held for several things.

    Raises:
        FolderInUseError: If another process holds it.
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
                f"{folder} is in use by {file.read().strip() or 'another process'}. Wait for it, or train in another "
                "folder with --out."
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
    """Whether a process holds a folder."""
    if folder.resolve() / name in _HELD:  # opening and closing the file would give the lock back
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
    """Write a run's config into its folder, or check that it is the one that is there.

    Raises:
        OtherConfigError: If the folder holds a run with another config; the message shows the differences.
    """
    path = folder / CONFIG
    if path.exists():
        differing = differences(read_config(folder), config)
        if differing:
            lines = [f"  {name}: {there!r} there, {asked!r} asked for" for name, (there, asked) in differing.items()]
            raise OtherConfigError(
                "\n".join([f"{folder} holds a run with another config:", *lines, "Choose another folder with --out."])
            )
        return
    strangers = sorted(entry.name for entry in folder.iterdir() if not entry.name.endswith((".lock", UNFINISHED)))
    if strangers:
        raise OtherConfigError(
            f"{folder} is not a run's folder: it holds {', '.join(strangers[:3])} but no {CONFIG}. Choose another one "
            "with --out."
        )
    write_json(path, to_dict(config))


def read_config(folder: Path) -> TrainConfig:
    """The config of the run in a folder.

    Raises:
        ConfigError: If there is none, or it cannot be understood.
    """
    path = Path(folder) / CONFIG
    try:
        return from_dict(json.loads(path.read_text()))
    except (OSError, json.JSONDecodeError, AttributeError) as error:
        raise ConfigError(f"{folder} is not a run's folder: {path} cannot be read ({error})") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def write_json(path: Path, values: Any) -> None:
    """Write a JSON file, whole or not at all."""
    with replacing(path) as file:
        file.write(json.dumps(values, indent=2, ensure_ascii=False).encode() + b"\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The entries of a file of JSON lines; a last line that is still being written is left out."""
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


class Lines:
    """A file of JSON lines that only grows, and can be cut back to where a checkpoint was.

    Args:
        path: The file; it is made with the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: io.FileIO | None = None

    def append(self, values: dict[str, Any]) -> None:
        """Add a line."""
        rest = json.dumps(values, ensure_ascii=False).encode() + b"\n"
        try:
            while rest:  # the system may take a part only
                rest = rest[self._opened().write(rest) :]
        except OSError as error:
            raise StorageError(
                f"cannot write to {self.path}: {error.strerror or error}. The checkpoints are untouched."
            ) from error

    def sync(self) -> int:
        """Bring everything to the disk; the length of the file."""
        if self._file is None:
            return self.path.stat().st_size if self.path.exists() else 0
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def cut(self, length: int) -> None:
        """Drop what was written after a checkpoint, which knows the length of that time.

        Raises:
            StorageError: If the file has become shorter since.
        """
        there = self.path.stat().st_size if self.path.exists() else 0
        if there < length:
            raise StorageError(
                f"{self.path} has {there} bytes, but the checkpoint was written when it had {length}: it was changed "
                "or lost since. Put it back, or train in another folder with --out."
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
            # Without a buffer, which would still be full of what a full disk did not take.
            self._file = open(self.path, "ab", buffering=0)
        return self._file


def _lock(file: IO[str]) -> None:
    """Take the lock, or raise; someone who only looks whether it is taken has it for a moment, too."""
    for attempt in range(LOCK_ATTEMPTS):
        try:
            # Not flock: worker processes would inherit that, and hold it on when this process is killed.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except (BlockingIOError, PermissionError):
            if attempt == LOCK_ATTEMPTS - 1:
                raise
            time.sleep(0.02)


def _drop_unfinished_line(path: Path) -> None:
    """Cut off a line that was being written when its process was killed."""
    content = path.read_bytes() if path.is_file() else b""
    if content and not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)
