"""The state of a run: waiting, running, stopped, failed, finished or damaged."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from spatialgrad.train.runs.console import show_metric
from spatialgrad.train.runs.folder import CHECKPOINT, CONFIG, METRICS, RESULT, is_locked, read_lines, write_json

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
    """Why it failed."""


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The headline of a finished run."""

    metric: str
    value: float
    """A share, or a distance."""
    seconds: float


def run_status(folder: Path) -> RunStatus:
    """The state of the run in a folder, which need not exist."""
    epochs = _epochs(folder)
    if (folder / RESULT).exists():
        return RunStatus(state="finished", epoch=epochs or 0, epochs=epochs)
    lines = read_lines(folder / METRICS)
    epoch = int(lines[-1]["epoch"]) + 1 if lines else 0
    if is_locked(folder):
        return RunStatus(state="running", epoch=epoch, epochs=epochs)
    if (folder / FAILURE).exists():
        message = str(json.loads((folder / FAILURE).read_text())["message"])
        return RunStatus(state="failed", epoch=epoch, epochs=epochs, message=message)
    begun = (folder / CHECKPOINT).exists() or bool(lines)
    return RunStatus(state="stopped" if begun else "waiting", epoch=epoch, epochs=epochs)


def read_headline(folder: Path) -> Headline | None:
    """The headline of the run in a folder, or None before it has finished."""
    path = folder / RESULT
    if not path.exists():
        return None
    result = json.loads(path.read_text())
    return Headline(metric=str(result["metric"]), value=float(result["value"]), seconds=float(result["seconds"]))


def format_metric(metric: str, value: float) -> str:
    """A headline value as text: "accuracy 71.20 %"."""
    return f"{metric} {show_metric(metric, value)}"


def record_failure(folder: Path, message: str, exit_code: int | None) -> None:
    """Record that a run failed, and why."""
    folder.mkdir(parents=True, exist_ok=True)
    values: dict[str, Any] = {"message": message, "exit_code": exit_code, "time": time.time()}
    write_json(folder / FAILURE, values)


def forget_failure(folder: Path) -> None:
    """Remove the record of a failure before the run is tried again."""
    (folder / FAILURE).unlink(missing_ok=True)


def _epochs(folder: Path) -> int | None:
    path = folder / CONFIG
    return int(json.loads(path.read_text())["budget"]["epochs"]) if path.exists() else None
