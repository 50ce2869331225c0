"""The state of a run: waiting, running, stopped, failed, finished or damaged."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from spatialgrad.studies.files import number, read_entries, read_object, whole
from spatialgrad.train.checkpoint import CHECKPOINT
from spatialgrad.train.console import show_metric
from spatialgrad.train.errors import DamagedFileError
from spatialgrad.train.jsonfiles import write_json
from spatialgrad.train.locks import is_locked
from spatialgrad.train.run import CONFIG, METRICS, RESULT

FAILURE, OUTPUT = "failure.json", "output.txt"
State = Literal["waiting", "running", "stopped", "failed", "finished", "damaged"]


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """State and progress of a run."""

    state: State
    epoch: int = 0
    """Number of completed epochs."""
    epochs: int | None = None
    """Number of epochs in total; None before the run has started."""
    message: str = ""
    """Why it failed, or which file is damaged."""


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The headline of a finished run."""

    metric: str
    value: float
    """A share, or a distance."""
    seconds: float


def run_status(folder: Path) -> RunStatus:
    """The state of the run in a folder, which need not exist; damaged files are named in its message."""
    try:
        epochs = _epochs(folder)
        if (folder / RESULT).exists():
            return RunStatus(state="finished", epoch=epochs or 0, epochs=epochs)
        problems: list[str] = []
        begun, epoch = False, 0
        for entry in read_entries(folder / METRICS, problems.append):
            begun, epoch = True, (whole(entry, "epoch") or 0) + 1
        message = "; ".join(problems)
        if is_locked(folder):
            return RunStatus(state="running", epoch=epoch, epochs=epochs, message=message)
        if (failure := read_failure(folder)) is not None:
            return RunStatus(state="failed", epoch=epoch, epochs=epochs, message=failure)
    except DamagedFileError as error:
        return RunStatus(state="damaged", message=str(error))
    begun = begun or (folder / CHECKPOINT).exists()
    return RunStatus(state="stopped" if begun else "waiting", epoch=epoch, epochs=epochs, message=message)


def read_headline(folder: Path) -> Headline | None:
    """The headline of the run in a folder, or None before it has finished.

    Raises:
        DamagedFileError: If the result cannot be read, or has no headline.
    """
    try:
        result = read_object(folder / RESULT)
    except FileNotFoundError:
        return None
    metric, value, seconds = result.get("metric"), number(result, "value"), number(result, "seconds")
    if not isinstance(metric, str) or value is None or seconds is None:
        raise DamagedFileError(f"{RESULT} has no metric, value or seconds")
    return Headline(metric=metric, value=value, seconds=seconds)


def format_metric(metric: str, value: float) -> str:
    """A headline value as text: "accuracy 71.20 %"."""
    return f"{metric} {show_metric(metric, value)}"


def record_failure(folder: Path, message: str, exit_code: int | None) -> None:
    """Record that a run failed, and why."""
    folder.mkdir(parents=True, exist_ok=True)
    # Two failures with the same message differ in their id, whatever the clock says.
    values: dict[str, Any] = {
        "message": message,
        "exit_code": exit_code,
        "time": time.time(),
        "id": uuid.uuid4().hex,
    }
    write_json(folder / FAILURE, values)


def read_failure(folder: Path) -> str | None:
    """Why the run in a folder failed, or None.

    Raises:
        DamagedFileError: If the record of the failure cannot be read.
    """
    try:
        message = read_object(folder / FAILURE).get("message")
    except FileNotFoundError:
        return None
    if not isinstance(message, str):
        raise DamagedFileError(f"{FAILURE} has no message")
    return message


def forget_failure(folder: Path) -> None:
    """Remove the record of a failure before the run is tried again."""
    (folder / FAILURE).unlink(missing_ok=True)


def _epochs(folder: Path) -> int | None:
    try:
        budget = read_object(folder / CONFIG).get("budget")
    except FileNotFoundError:
        return None
    epochs = whole(budget, "epochs") if isinstance(budget, dict) else None
    if epochs is None:
        raise DamagedFileError(f"{CONFIG} has no number of epochs")
    return epochs
