"""Checkpoints, complete or absent: written to a temporary file, flushed and renamed; the previous one is kept.

A checkpoint records the config of its run, and is refused by any other run.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, cast

import torch

from spatialgrad.train.config.groups import TrainConfig
from spatialgrad.train.config.io import differences, from_dict
from spatialgrad.train.config.validation import flag
from spatialgrad.train.errors import CheckpointError, ConfigError
from spatialgrad.train.runs.extension import is_longer, why_not_extendable
from spatialgrad.train.runs.folder import CHECKPOINT, DAMAGED_CHECKPOINT, PREVIOUS_CHECKPOINT, RESULT, replacing

FORMAT = 1
"""Of the checkpoints that this version writes and reads."""
COMPLETE = ("config", "network", "optimizer", "method", "precision", "sums", "lines", "seconds", "peak_memory")
"""What resuming needs, in addition to the weights and the position."""
OTHER_FOLDER = "Choose another folder with --out to start over"


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint; the newest one so far becomes the previous one.

    Whenever the process is killed, a complete checkpoint exists under one of the two names.

    Raises:
        StorageError: If it cannot be written; existing checkpoints are unchanged.
    """
    with replacing(folder / CHECKPOINT, keep_as=folder / PREVIOUS_CHECKPOINT) as file:
        writer = _ErrorKeepingWriter(file)
        try:
            torch.save({"format": FORMAT, **state}, cast("IO[bytes]", writer))
        except RuntimeError as error:
            # torch's writer says where in its own code it failed; the system's error is the reason.
            raise writer.error or error from error


def has_checkpoint(folder: Path) -> bool:
    """Whether there is a checkpoint, damaged or not."""
    return any((folder / name).exists() for name in (CHECKPOINT, PREVIOUS_CHECKPOINT))


def without_checkpoint(folder: Path) -> str:
    """Say that a run has no checkpoint: it has not come that far, or its weights are gone."""
    if (folder / RESULT).exists():
        return (
            f"{folder} has a result, but no weights: it was restored from kept results, which have none, or its "
            "checkpoint was deleted. Move the folder away and train the run again"
        )
    return f"{folder} has no checkpoint yet; train it first"


def load_checkpoint(folder: Path, report: Callable[[str], None] | None = None) -> dict[str, Any] | None:
    """Read the newest intact checkpoint; None if there is no checkpoint.

    Args:
        folder: Of the run.
        report: Called with a message if the newest one is damaged and the previous one is used instead; the damaged one
            is renamed. By default, the folder is only read.

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
        if problems and report is not None:
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


def check_identity(state: Mapping[str, Any], config: TrainConfig) -> None:
    """Raise if a checkpoint belongs to a run with another config.

    Args:
        state: Of the checkpoint.
        config: Of the run whose folder it is in.

    Raises:
        CheckpointError: The message lists the differences.
    """
    if not isinstance(state.get("config"), Mapping):
        raise CheckpointError(f"the checkpoint in {config.folder} does not record its config. {OTHER_FOLDER}.")
    try:
        there: TrainConfig = from_dict(state["config"])
    except (ConfigError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint in {config.folder} has an invalid config ({error})") from error
    differing = differences(there, config)
    if None not in differing.get("model.backbone", (None,)):
        # The backbone may have been moved; its weights are in the checkpoint.
        del differing["model.backbone"]
    if is_longer(differing) and why_not_extendable(there) is None:
        # Saved before the run was extended: up to there, both trainings are the same.
        differing = {}
    if differing:
        lines = [
            f"  {flag(name)}: {there!r} in the checkpoint, {now!r} in the config"
            for name, (there, now) in differing.items()
        ]
        header = f"the checkpoint in {config.folder} belongs to another run:"
        raise CheckpointError("\n".join([header, *lines, f"Restore the run's own checkpoint. {OTHER_FOLDER}."]))


def check_position(state: Mapping[str, Any], config: TrainConfig, steps_per_epoch: int) -> None:
    """Raise if a checkpoint is incomplete, or its position is impossible.

    Args:
        state: Of the checkpoint.
        config: Of the run.
        steps_per_epoch: Of the run.
    """
    missing = [name for name in COMPLETE if name not in state]
    lengths = state.get("lines", {})
    if not isinstance(lengths, Mapping) or not all(_is_count(length) for length in lengths.values()):
        missing.append("lines")
    if missing:
        raise CheckpointError(f"the checkpoint in {config.folder} has no {', '.join(missing)}. {OTHER_FOLDER}.")
    epoch, batch, step = (state[name] for name in ("epoch", "batch", "step"))
    possible = all(map(_is_count, (epoch, batch, step))) and (
        (epoch < config.budget.epochs and batch <= steps_per_epoch) or (epoch == config.budget.epochs and batch == 0)
    )
    if not possible or step != epoch * steps_per_epoch + batch:
        raise CheckpointError(
            f"the checkpoint in {config.folder} is inconsistent: step {step} is not batch {batch} of epoch {epoch} in "
            f"a training of {config.budget.epochs} epochs with {steps_per_epoch} steps each. If another number of "
            f"processes wrote it, use that number again. {OTHER_FOLDER}."
        )


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read one checkpoint file, and verify its checksums.

    Raises:
        CheckpointError: If it is damaged, or not a checkpoint.
    """
    if not path.is_file():  # reading a pipe would wait forever
        raise CheckpointError(f"{path} is not a regular file")
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
    if state.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {state.get('format')!r}; this version reads format {FORMAT}")
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


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]
