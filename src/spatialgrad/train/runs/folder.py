"""A run is a folder: the names of its files, who may write to it, and how they are written."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from spatialgrad.train.config.groups import TrainConfig
from spatialgrad.train.config.io import differences, from_dict, to_dict
from spatialgrad.train.config.validation import flag
from spatialgrad.train.errors import ConfigError, DamagedFileError, FolderInUseError, OtherConfigError, StorageError
from spatialgrad.train.runs.extension import is_longer, why_not_extendable

CONFIG, ENVIRONMENT, RESULT, LOCK = "config.json", "environment.json", "result.json", "run.lock"
EARLIER_RESULT = "result.{epochs}-epochs.json"
"""The result of a run before it was extended."""
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
_HELD_GUARD = threading.Lock()


@contextmanager
def locked(folder: Path, name: str = LOCK) -> Iterator[None]:
    """Lock a folder for this process, and create it if necessary.

    The system releases the lock when the process ends, however it ends.

    Args:
        folder: To lock.
        name: Lock file; a folder can have several locks.

    Raises:
        FolderInUseError: If another process, or another part of this one, holds the lock.
    """
    path = folder.resolve() / name
    with _HELD_GUARD:
        # Before the file is opened: closing any handle of it would release the lock that this process holds.
        if path in _HELD:
            raise FolderInUseError(
                f"{folder} is in use by this process. Wait until that training ends, or choose another folder with "
                "--out."
            )
        _HELD.add(path)
    try:
        with _open_lock(folder, name) as file:
            try:
                _lock(file)
            except (BlockingIOError, PermissionError) as error:
                raise FolderInUseError(
                    f"{folder} is in use by {file.read().strip() or 'another process'}. Wait until it ends, or choose "
                    "another folder with --out."
                ) from error
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


def claim(folder: Path, config: TrainConfig) -> int | None:
    """Write a run's config to its folder, or check that the folder holds the same one, or one to extend.

    Returns:
        The number of epochs that the run in the folder had before it was extended; None if it was not.

    Raises:
        OtherConfigError: If the folder holds a run with a different config; the message lists the differences.
    """
    path = folder / CONFIG
    if path.exists():
        there = read_config(folder)
        differing = differences(there, config)
        if is_longer(differing):
            _extend(folder, there, config)
            return there.budget.epochs
        if differing:
            lines = [f"  {flag(name)}: {there!r} there, {now!r} requested" for name, (there, now) in differing.items()]
            header, way_out = f"{folder} holds a run with a different config:", "Choose another folder with --out."
            raise OtherConfigError("\n".join([header, *lines, way_out]))
        return None
    strangers = sorted(entry.name for entry in folder.iterdir() if not entry.name.endswith((".lock", UNFINISHED)))
    if strangers:
        raise OtherConfigError(
            f"{folder} is not a run's folder: it holds {', '.join(strangers[:3])} but no {CONFIG}. Choose another "
            "folder with --out."
        )
    write_json(path, to_dict(config))
    return None


def _extend(folder: Path, there: TrainConfig, config: TrainConfig) -> None:
    """Make the run in a folder one of more epochs."""
    before, now = there.budget.epochs, config.budget.epochs
    if why_not := why_not_extendable(there):
        raise OtherConfigError(
            f"{folder} holds a run of {before} epochs, which cannot be extended to --epochs {now}: {why_not}. Choose "
            "another folder with --out."
        )
    # The result first: without it, a run that is interrupted here only writes it again.
    if (folder / RESULT).exists():
        (folder / RESULT).replace(folder / EARLIER_RESULT.format(epochs=before))
    write_json(folder / CONFIG, {**to_dict(there), "budget": to_dict(config.budget)})


def read_config(folder: Path) -> TrainConfig:
    """The config of the run in a folder.

    Raises:
        ConfigError: If there is none, or it is invalid.
    """
    path = Path(folder) / CONFIG
    if not path.exists():
        raise ConfigError(f"{folder} is not a run's folder: it has no {CONFIG}")
    try:
        return from_dict(read_json(path))
    except DamagedFileError as error:
        raise ConfigError(str(error)) from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except (TypeError, ValueError) as error:  # what the checks of a value of another type may raise
        raise ConfigError(f"{path} is damaged ({error})") from error


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
        with _create(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if keep_as is not None and path.exists():
            path.replace(keep_as)
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        _remove(temporary)
        raise StorageError(f"cannot write {path}: {error.strerror or error}. Existing files are unchanged.") from error
    except BaseException:
        _remove(temporary)
        raise


def write_json(path: Path, values: Any) -> None:
    """Write a JSON file, completely or not at all."""
    with replacing(path) as file:
        file.write(json.dumps(values, indent=2, ensure_ascii=False).encode() + b"\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The entries of a file of JSON lines, without a last line that is still being written.

    Raises:
        DamagedFileError: If a line is not a JSON object; the message names the file and the line.
    """
    return [] if not path.exists() else parse_lines(path, path.read_bytes())


def parse_lines(path: Path, content: bytes) -> list[dict[str, Any]]:
    """As `read_lines`, of a file's content that was read before.

    Raises:
        DamagedFileError: If a line is not a JSON object; the message names the file and the line.
    """
    entries = []
    # Not splitlines(), which also splits at characters that JSON strings may contain.
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DamagedFileError(f"line {number} of {path} is damaged ({error})") from error
        if not isinstance(entry, dict):
            raise DamagedFileError(f"line {number} of {path} is damaged (not a JSON object)")
        entries.append(entry)
    return entries


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        DamagedFileError: If it cannot be read, or is not a JSON object; the message names the file.
    """
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is damaged ({error})") from error
    if not isinstance(values, dict):
        raise DamagedFileError(f"{path} is damaged (not a JSON object)")
    return values


def _open_lock(folder: Path, name: str) -> IO[str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Its content is replaced: it must not be a link to something else.
        handle = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise StorageError(f"cannot write to {folder / name}: {error.strerror or error}") from error
    return os.fdopen(handle, "r+")


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


def _create(path: Path) -> IO[bytes]:
    """Open a new file for writing; what a killed process left under its name is removed, and links are not followed."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "wb")


def _remove(path: Path) -> None:
    """Remove an unfinished file, without an error that would hide the one that it is unfinished for."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
