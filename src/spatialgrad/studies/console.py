"""Progress of runs: a line for each that has ended; what is running now on a terminal, or once a minute in a log."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.status import Status

from spatialgrad.studies.plan import Job
from spatialgrad.train.console import describe, duration, show_metric
from spatialgrad.train.errors import TrainError
from spatialgrad.train.run import Run

REFRESH, LOG_SECONDS = 1.0, 60.0
"""Seconds between two looks at running runs: on a terminal, and where lines are printed instead."""


class StudyReporter:
    """Reports the progress of runs.

    Args:
        console: Where to print; by default the standard output.
        clock: Gives seconds.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.console, self._clock = console or Console(), clock
        self._total = self._before = self._ended = 0
        self._began: float | None = None
        self._looked = clock()
        self._status: Status | None = None
        self._shown: dict[Path, int] = {}
        self._estimated = False

    def start(self, total: int, num_finished: int, noun: str = "run") -> None:
        """Announce the runs, some of which had finished before."""
        self._total, self._before, self._began = total, num_finished, self._clock()
        already = f", {num_finished} of them already finished" if num_finished else ""
        self.message(f"{counted(total, noun)}{already}.")
        if self.console.is_terminal and num_finished < total:
            self._status = Status("starting", console=self.console)
            self._status.start()

    def finished(self, job: Job, run: Run) -> None:
        """Report a run that has finished; those that had finished before the start get no line."""
        if self._began is not None and (result := run.result) is not None:
            shown = f"{result.metric} {show_metric(result.metric, result.value)} in {duration(result.seconds)}"
            self.ended(job, shown)

    def failed(self, job: Job, message: str) -> None:
        """Report a run that has failed."""
        first, *more = message.splitlines() or [""]
        self.ended(job, "FAILED: " + first + "".join(f"\n    {line}" for line in more), estimate=False)

    def ended(self, job: Job, what: str, *, estimate: bool = True) -> None:
        """Report the end of a run, and how long the rest will take."""
        self._ended += 1
        done = self._before + self._ended
        left, elapsed = self._total - done, self._clock() - (self._began or self._clock())
        rest = f" · about {duration(elapsed / self._ended * left)} left" if left > 0 and estimate else ""
        width = len(str(self._total))
        self.message(f"[{done:>{width}}/{self._total}] {job.title}: {what}{rest}")

    def look(self, running: Sequence[Job]) -> None:
        """Show what is running: on a terminal always, elsewhere a line per minute and run that has made progress."""
        if not self._estimated:
            self._estimate(running)
        wait = LOG_SECONDS if self._status is None else REFRESH
        if self._clock() - self._looked < wait:
            return
        self._looked = self._clock()
        if self._status is None:
            for job in running:
                if (epoch := Run.open(job.folder).epoch) != self._shown.get(job.folder, 0):
                    self._shown[job.folder] = epoch
                    self.message(f"  {job.title}: {_progress(job)}")
            return
        # Titles may contain brackets, which are not markup.
        now = " | ".join(f"{job.title} ({_progress(job)})" for job in running) or "waiting for other commands"
        self._status.update(f"{self._before + self._ended} of {self._total} · {now}".replace("[", r"\["))

    def _estimate(self, running: Sequence[Job]) -> None:
        """Tell, once and after the first steps of the first runs, how long all runs will take."""
        try:
            known = [each for job in running if (each := Run.open(job.folder).estimated_seconds) is not None]
        except TrainError:  # the run says so when it resumes
            return
        if known:
            self._estimated = True
            mean, left = sum(known) / len(known), self._total - self._before - self._ended
            rounds = math.ceil(left / len(running))
            self.message(
                f"Estimated time: {duration(mean)} per run, {duration(mean * rounds)} for {counted(left, 'run')} "
                f"({len(running)} at a time), if all take as long as {running[0].title}."
            )

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


def counted(number: int, noun: str) -> str:
    """A number of things: "1 run", "2 runs"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _progress(job: Job) -> str:
    """How far a run is: "epoch 3/30, test loss 1.234 · test accuracy 41.2 %"."""
    run, epochs = Run.open(job.folder), job.config.budget.epochs
    try:
        last = run.metrics[-1] if run.metrics else {}
    except TrainError:  # the run says so when it resumes
        last = {}
    tested = {name: value for name, value in last.items() if name.startswith("test_") and value is not None}
    shown = f", {describe(tested)}" if tested else ""
    return f"epoch {min(run.epoch + 1, epochs)}/{epochs}{shown}"
