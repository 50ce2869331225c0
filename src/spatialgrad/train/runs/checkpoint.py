"""Checkpoints, complete or absent: written to a temporary file, flushed and renamed; the previous one is kept."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import torch

from spatialgrad.train.errors import CheckpointError
from spatialgrad.train.runs.folder import CHECKPOINT, DAMAGED_CHECKPOINT, PREVIOUS_CHECKPOINT, replacing


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint; the newest one so far becomes the previous one.

    Whenever the process is killed, a complete checkpoint exists under one of the two names.

    Raises:
        StorageError: If it cannot be written; existing checkpoints are unchanged.
    """
    with replacing(folder / CHECKPOINT, keep_as=folder / PREVIOUS_CHECKPOINT) as file:
        writer = _ErrorKeepingWriter(file)
        try:
            torch.save(state, cast("IO[bytes]", writer))
        except RuntimeError as error:
            # torch's writer says where in its own code it failed; the system's error is the reason.
            raise writer.error or error from error


def has_checkpoint(folder: Path) -> bool:
    """Whether there is a checkpoint, damaged or not."""
    return any((folder / name).exists() for name in (CHECKPOINT, PREVIOUS_CHECKPOINT))


def load_checkpoint(folder: Path, report: Callable[[str], None]) -> dict[str, Any] | None:
    """Read the newest intact checkpoint; None if there is no checkpoint.

    A damaged one is renamed, and the previous one is used.

    Args:
        folder: Of the run.
        report: Called with a message if a checkpoint is damaged.

    Raises:
        CheckpointError: If all checkpoints are damaged.
    """
    problems: list[str] = []
    for name in (CHECKPOINT, PREVIOUS_CHECKPOINT):
        path = folder / name
        if not path.exists():
            continue
        try:
            state = read_checkpoint(path)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        if problems:
            # The next save would otherwise move it to the place of the intact one.
            (folder / CHECKPOINT).replace(folder / DAMAGED_CHECKPOINT)
            report(
                f"{problems[0]}. Kept as {DAMAGED_CHECKPOINT}; resuming from the previous one, step {state['step']}."
            )
        return state
    if problems:
        raise CheckpointError(
            f"{'; '.join(problems)}. No intact checkpoint is left: choose another folder with --out, or remove "
            f"{folder} to start over."
        )
    return None


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read one checkpoint file, and verify its checksums.

    Raises:
        CheckpointError: If it is damaged, or not a checkpoint.
    """
    try:
        # torch.load ignores the checksums that torch.save writes: a flipped bit would pass.
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
        raise CheckpointError(f"{path} is not a checkpoint of a training")
    return state


class _ErrorKeepingWriter(io.RawIOBase):
    """Writes to a file, and keeps the system's error."""

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
