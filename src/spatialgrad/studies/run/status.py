"""What has become of a run: waiting, running, stopped, failed or finished."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from spatialgrad.train.runs.folder import CHECKPOINT, CONFIG, METRICS, RESULT, is_locked, read_lines, write_json

FAILURE, OUTPUT = "failure.json", "output.txt"
State = Literal["waiting", "running", "stopped", "failed", "finished", "damaged"]


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """Where a run is."""

    state: State
    epoch: int = 0
    """Epochs that are done."""
    epochs: int | None = None
    """Epochs that there will be, once it has begun."""
    message: str = ""
    """Why it failed."""


def run_status(folder: Path) -> RunStatus:
    """What has become of the run in a folder, which need not exist."""
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


def record_failure(folder: Path, message: str, exit_code: int | None) -> None:
    """Write down that a run has failed, and why."""
    folder.mkdir(parents=True, exist_ok=True)
    values: dict[str, Any] = {"message": message, "exit_code": exit_code, "time": time.time()}
    write_json(folder / FAILURE, values)


def forget_failure(folder: Path) -> None:
    """Before a failed run is tried again."""
    (folder / FAILURE).unlink(missing_ok=True)


def _epochs(folder: Path) -> int | None:
    path = folder / CONFIG
    return int(json.loads(path.read_text())["budget"]["epochs"]) if path.exists() else None
