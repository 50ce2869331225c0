"""The runs of a study on disk: trained in its folder, taken from an archive, or archived altogether."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spatialgrad.train.config import TrainConfig
from spatialgrad.train.console import show_metric
from spatialgrad.train.errors import ConfigError, DamagedFileError
from spatialgrad.train.flags import flag
from spatialgrad.train.identity import Identity, explain_difference
from spatialgrad.train.run import CONFIG, RESULT, Run

MOST_DIFFERENCES = 3
"""Number of differing fields that a message lists."""
State = Literal["waiting", "running", "interrupted", "failed", "finished", "damaged"]


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


def run_status(run: Run, planned: TrainConfig | None = None) -> RunStatus:
    """The state of a run; damaged files, and a run that is not the planned one, are named in its message."""
    try:
        epochs = run.config.budget.epochs if run.exists else None
        state, epoch = run.state, run.epoch
        if state == "finished":
            if problem := why_not_planned(run, planned):
                return RunStatus(state="damaged", message=problem)
            return RunStatus(state="finished", epoch=epochs or 0, epochs=epochs)
        message = (run.failure or "") if state == "failed" else ""
    except (ConfigError, DamagedFileError) as error:
        return RunStatus(state="damaged", message=str(error))
    return RunStatus(state="waiting" if state == "new" else state, epoch=epoch, epochs=epochs, message=message)


def why_not_planned(run: Run, planned: TrainConfig | None) -> str:
    """How a finished run differs from the planned one; empty if it does not.

    Args:
        run: The run.
        planned: The config that was planned; None if it is not known.

    Raises:
        ConfigError: If its config cannot be read.
        DamagedFileError: If its result cannot be read.
    """
    result, config = run.result, run.config
    if planned is not None and (differing := explain_difference(run.identity, Identity(planned))):
        named = [f"{flag(name)}: {there!r} there, {now!r} planned" for name, (there, now) in differing.items()]
        more = f"; and {len(named) - MOST_DIFFERENCES} more" if len(named) > MOST_DIFFERENCES else ""
        return f"{CONFIG} is that of another run ({'; '.join(named[:MOST_DIFFERENCES])}{more})"
    if result is None:
        return ""
    known = {"model": config.model.name, "method": config.method.name, "seed": config.seed}
    for name, value in {**known, "epochs": config.budget.epochs}.items():
        if getattr(result, name) != value:
            return f"{RESULT} is that of another run ({name} {getattr(result, name)!r}, but {value!r} in {CONFIG})"
    return ""


def format_metric(metric: str, value: float) -> str:
    """A headline value as text: "accuracy 71.20 %"."""
    return f"{metric} {show_metric(metric, value)}"
