"""Progress of a study: one line per run that has ended, and on a terminal what is running now."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.status import Status

from spatialgrad.studies.plan import Job
from spatialgrad.studies.run.status import format_metric, read_headline, run_status
from spatialgrad.train.console import duration

REFRESH = 1.0
"""Seconds between two updates of the status line."""


class StudyReporter:
    """Reports the progress of a study.

    Args:
        console: Where to print; by default the standard output.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._total = self._before = self._ended = 0
        self._began: float | None = None
        self._looked = 0.0
        self._status: Status | None = None
        self._titles: dict[Path, str] = {}

    def start(self, jobs: Sequence[Job], num_finished: int) -> None:
        """Announce the runs, some of which had finished before."""
        self._total, self._before, self._began = len(jobs), num_finished, time.monotonic()
        self._titles = {job.folder: job.title for job in jobs}
        already = f", {num_finished} of them already finished" if num_finished else ""
        self.message(f"{counted(len(jobs), 'run')}{already}.")
        if self.console.is_terminal and num_finished < len(jobs):
            self._status = Status("starting", console=self.console)
            self._status.start()

    def finished(self, job: Job) -> None:
        """Report a run that has finished; those that had finished before the start get no line."""
        if self._began is not None:
            self._line(job, _outcome(job.folder))

    def failed(self, job: Job, message: str) -> None:
        """Report a run that has failed."""
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
        # Titles may contain brackets, which are not markup.
        now = " | ".join(parts) or "waiting for other commands"
        text = f"{self._before + self._ended} of {self._total} · {now}"
        self._status.update(text.replace("[", r"\["))

    def message(self, text: str) -> None:
        """Print a message; a closed terminal does not end the study."""
        try:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)
        except (OSError, SystemExit):  # the latter is what rich makes of a broken pipe
            self.console.quiet = True

    def stop(self) -> None:
        """Remove the status line."""
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


def counted(number: int, noun: str) -> str:
    """A number of things: "1 run", "2 runs"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _outcome(folder: Path) -> str:
    headline = read_headline(folder)
    return f"{format_metric(headline.metric, headline.value)} in {duration(headline.seconds)}" if headline else ""
