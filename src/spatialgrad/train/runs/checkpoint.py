"""Checkpoints that are whole or not there: written beside the old one, flushed, and renamed; one older one is kept."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import torch

from spatialgrad.train.errors import CheckpointError, StorageError

UNFINISHED = ".writing"
"""Ending of a file that was being written when its process was killed."""
NEWEST, PREVIOUS, DAMAGED = "checkpoint.pt", "checkpoint.previous.pt", "checkpoint.damaged.pt"


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint; the newest one until now becomes the previous one.

    Whenever the process is killed, a whole checkpoint is there under one of the two names.

    Raises:
        StorageError: If it cannot be written; the older ones are as they were.
    """
    newest, previous = folder / NEWEST, folder / PREVIOUS
    with replacing(newest, keep_as=previous) as file:
        kept = _KeepsError(file)
        try:
            torch.save(state, cast("IO[bytes]", kept))
        except RuntimeError as error:
            # torch's writer says where in its own code it failed; what the system said is the reason.
            raise kept.error or error from error


def has_checkpoint(folder: Path) -> bool:
    """Whether there is a checkpoint, whole or damaged."""
    return any((folder / name).exists() for name in (NEWEST, PREVIOUS))


def load_checkpoint(folder: Path, report: Callable[[str], None]) -> dict[str, Any] | None:
    """Read the newest checkpoint that is whole, or None if there is none at all.

    A damaged one is put aside, and the one before it is used.

    Args:
        folder: Of the run.
        report: Called with a line of text if something is wrong.

    Raises:
        CheckpointError: If there are checkpoints but none can be read.
    """
    problems: list[str] = []
    for name in (NEWEST, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            state = read_checkpoint(path)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        if problems:
            # Out of the way: the next save would put it in the place of the good one.
            (folder / NEWEST).replace(folder / DAMAGED)
            report(f"{problems[0]}. It is kept as {DAMAGED}; going on from the one before it, step {state['step']}.")
        return state
    if problems:
        raise CheckpointError(
            f"{'; '.join(problems)}. No checkpoint is left to go on from: train in another folder with --out, or "
            f"remove {folder} to start over."
        )
    return None


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read one checkpoint file, with every byte of it checked.

    Raises:
        CheckpointError: If it is damaged, or no checkpoint.
    """
    try:
        # torch.load does not look at the checksums that torch.save has written: a flipped bit would pass.
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise CheckpointError(f"{path} is damaged (checksum of {damaged})")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # whatever a damaged file makes the readers raise
        raise CheckpointError(f"{path} is damaged ({type(error).__name__}: {_first_line(error)})") from error
    if not isinstance(state, dict) or not {"step", "epoch", "batch", "model"} <= set(state):
        raise CheckpointError(f"{path} is no checkpoint of a training")
    return state


@contextmanager
def replacing(path: Path, *, keep_as: Path | None = None) -> Iterator[IO[bytes]]:
    """A file to write to that takes the place of `path` when it is whole and on the disk, and never before.

    Args:
        path: The file to replace.
        keep_as: Where the file that was there goes.

    Raises:
        StorageError: If the system cannot write it.
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
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StorageError(f"cannot write {path}: {error.strerror or error}. What was there is untouched.") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _KeepsError(io.RawIOBase):
    """Hands bytes on to a file, and remembers what went wrong."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]
