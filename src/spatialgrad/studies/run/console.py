"""What a study tells while it runs: a line per run that has ended, and on a terminal what is running now."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.status import Status

from spatialgrad.studies.plan import Job
from spatialgrad.studies.run.status import run_status
from spatialgrad.train.runs.console import duration, show_metric
from spatialgrad.train.runs.folder import RESULT

REFRESH = 1.0
"""Seconds between two looks at what is running."""


class StudyReporter:
    """Tells how far a study is.

    Args:
        console: Where to; by default the standard output.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._total = self._before = self._ended = 0
        self._began: float | None = None
        self._looked = 0.0
        self._status: Status | None = None
        self._titles: dict[Path, str] = {}

    def start(self, jobs: Sequence[Job], num_finished: int) -> None:
        """The runs are known, and how many of them were finished before."""
        self._total, self._before, self._began = len(jobs), num_finished, time.monotonic()
        self._titles = {job.folder: job.title for job in jobs}
        already = f", {num_finished} of them finished already" if num_finished else ""
        self.message(f"{len(jobs)} {'run' if len(jobs) == 1 else 'runs'}{already}.")
        if self.console.is_terminal and num_finished < len(jobs):
            self._status = Status("starting", console=self.console)
            self._status.start()

    def finished(self, job: Job) -> None:
        """A run has finished; those that had before the start are not worth a line."""
        if self._began is not None:
            self._line(job, _headline(job.folder))

    def failed(self, job: Job, message: str) -> None:
        """A run has failed."""
        first, *more = message.splitlines() or [""]
        self._line(job, "FAILED: " + first + "".join(f"\n    {line}" for line in more))

    def look(self, running: Sequence[Path]) -> None:
        """Show what is running, on a terminal."""
        if self._status is None or time.monotonic() - self._looked < REFRESH:
            return
        self._looked = time.monotonic()
        parts = []
        for folder in running:
            status = run_status(folder)
            parts.append(f"{self._titles[folder]} (epoch {min(status.epoch + 1, status.epochs or 1)}/{status.epochs})")
        # Titles are the user's: no markup in them.
        text = f"{self._before + self._ended} of {self._total} · " + (" | ".join(parts) or "waiting for others")
        self._status.update(text.replace("[", r"\["))

    def message(self, text: str) -> None:
        """Something that a user should know; a terminal that is gone does not end a study."""
        try:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)
        except (OSError, SystemExit):  # the latter is what rich makes of a broken pipe
            self.console.quiet = True

    def stop(self) -> None:
        """It has ended."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _line(self, job: Job, what: str) -> None:
        self._ended += 1
        done = self._before + self._ended
        left = self._total - done
        elapsed = time.monotonic() - (self._began or time.monotonic())
        rest = f" · about {duration(elapsed / self._ended * left)} left" if left else ""
        width = len(str(self._total))
        self.message(f"[{done:>{width}}/{self._total}] {job.title}: {what}{rest if 'FAILED' not in what else ''}")


def _headline(folder: Path) -> str:
    result = json.loads((folder / RESULT).read_text())
    metric = result["metric"]
    return f"{metric} {show_metric(metric, result['value'])} in {duration(result['seconds'])}"
