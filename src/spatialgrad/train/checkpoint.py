"""Checkpoints, complete or absent: written to a temporary file, flushed and renamed; the previous one is kept.

PyTorch is imported when one is read or written: who lists runs does without it.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

from spatialgrad.train.errors import CheckpointError, StorageError
from spatialgrad.train.jsonfiles import replacing

CHECKPOINT, PREVIOUS_CHECKPOINT = "checkpoint.pt", "checkpoint.previous.pt"
FORMAT = 2
"""Of the checkpoints that this version writes and reads."""


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint; the newest one so far becomes the previous one.

    Whenever the process is killed, a complete checkpoint exists under one of the two names.

    Raises:
        StorageError: If it cannot be written; existing checkpoints are unchanged.
    """
    import torch

    try:
        with replacing(folder / CHECKPOINT, keep_as=folder / PREVIOUS_CHECKPOINT) as file:
            torch.save({"format": FORMAT, **state}, file)
    except RuntimeError as error:
        if isinstance(error, StorageError) or not isinstance(error.__context__, OSError):
            raise
        # torch's writer says where in its own code it failed; the system's error is the reason.
        reason = error.__context__.strerror
        raise StorageError(f"cannot write {folder / CHECKPOINT}: {reason}. Existing files are unchanged.") from error


def has_checkpoint(folder: Path) -> bool:
    """Whether there is a checkpoint."""
    return any((folder / name).exists() for name in (CHECKPOINT, PREVIOUS_CHECKPOINT))


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Read the newest checkpoint; None if there is none.

    Raises:
        CheckpointError: If it is damaged; the message says how to use the previous one.
    """
    newest, previous = folder / CHECKPOINT, folder / PREVIOUS_CHECKPOINT
    try:
        if newest.exists():
            return read_checkpoint(newest)
    except CheckpointError as error:
        if not previous.exists():
            raise
        raise CheckpointError(
            f"{error}. The one before it is {previous.name}; to resume from there, rename it to {newest.name}"
        ) from error
    # A process that was killed between two renames leaves the previous one only.
    return read_checkpoint(previous) if previous.exists() else None


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read one checkpoint file, and verify its checksums; nothing in it is executed.

    Raises:
        CheckpointError: If it is damaged, or not a checkpoint.
    """
    import torch

    try:
        # torch.load ignores the checksums that torch.save writes: a flipped bit would pass.
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"wrong checksum of {damaged}")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes the readers raise
        reason = (str(error).splitlines() or [""])[0][:200]
        raise CheckpointError(f"{path} is damaged ({type(error).__name__}: {reason})") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else None
        raise CheckpointError(f"{path} is not a checkpoint of this version (format {found!r}, not {FORMAT})")
    return state
