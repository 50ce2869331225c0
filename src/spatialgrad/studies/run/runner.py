"""Run what a plan says, once: start what can start, note what has ended, and share the work with others at it.

Whoever runs a run holds `launch.lock` in its folder, so that several of these on the same study, on one machine or on
several that share a file system, divide it between them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from spatialgrad.studies.plan import Job, Plan
from spatialgrad.studies.record import STUDY, read_study
from spatialgrad.studies.run.console import StudyReporter
from spatialgrad.studies.run.local import IN_USE, Ended, Launcher
from spatialgrad.studies.run.search import GridSearch
from spatialgrad.studies.run.status import FAILURE, forget_failure, record_failure
from spatialgrad.studies.run.worker import write_kind
from spatialgrad.train.config.io import to_dict, with_values
from spatialgrad.train.engine.signals import Stop
from spatialgrad.train.errors import FolderInUseError, InterruptedTraining, StorageError
from spatialgrad.train.runs.folder import CONFIG, RESULT, claim, is_locked, locked, read_config, write_json

LAUNCH_LOCK, PLAN_LOCK = "launch.lock", "plan.lock"
POLL = 0.5
"""Seconds between two looks at what others do."""
PATIENCE = 60.0
"""Seconds to wait for another one that plans."""


@dataclass
class Outcome:
    """What has become of the jobs of a plan."""

    finished: set[Path] = field(default_factory=set)
    failed: dict[Path, str] = field(default_factory=dict)
    blocked: dict[Path, str] = field(default_factory=dict)
    """Runs that could not start, because what they need has failed."""

    def __contains__(self, folder: Path) -> bool:
        return folder in self.finished or folder in self.failed or folder in self.blocked


class Runner:
    """Runs a plan.

    Args:
        plan: What to do.
        launcher: Where runs are started.
        reporter: Whom to tell.
        stop: Whether someone wants it to stop.
        processes: Of each run.
    """

    def __init__(
        self, plan: Plan, launcher: Launcher, reporter: StudyReporter, stop: Stop, *, processes: int = 1
    ) -> None:
        self.plan, self.launcher, self.reporter, self.stop, self.processes = plan, launcher, reporter, stop, processes
        self.outcome = Outcome()
        self._began = time.time()
        self._jobs = {job.folder: job for job in plan.jobs}
        self._claims: dict[Path, ExitStack] = {}
        with planning(plan.folder):
            record = plan.record
            if (plan.folder / STUDY).exists():
                # Another command may have extended the study since this one was planned.
                record = record.joined(read_study(plan.folder))
            record.write(plan.folder)
            self._searches = [GridSearch(plan.folder, record, reporter.message) for record in plan.searches]

    def run(self) -> Outcome:
        """Everything, as far as it can be done.

        Raises:
            InterruptedTraining: If a signal came; every run has saved.
        """
        self._collect()
        self.reporter.start(list(self._jobs.values()), len(self.outcome.finished))
        try:
            while True:
                if self.stop.signal:
                    self._leave()
                started = self._start_what_can()
                for ended in self.launcher.ended(POLL if not started else 0.0):
                    self._note(ended)
                self._collect()
                if not self.launcher.running and all(folder in self.outcome for folder in self._jobs):
                    return self.outcome
                self.reporter.look(list(self._claims))
        finally:
            self.launcher.close()
            for held in self._claims.values():
                held.close()
            self.reporter.stop()

    def _start_what_can(self) -> bool:
        started = False
        for job in self._jobs.values():
            if not self.launcher.has_room:
                break
            if job.folder not in self.outcome and job.folder not in self._claims:
                started |= self._start(job)
        return started

    def _start(self, job: Job) -> bool:
        """Start a run if what it needs is there and no one else is at it."""
        complete = self._completed(job)
        if complete is None:
            return False
        with ExitStack() as held:
            try:
                held.enter_context(locked(job.folder, LAUNCH_LOCK))
            except FolderInUseError:
                return False
            if is_locked(job.folder) or (job.folder / RESULT).exists() or self._failed_elsewhere(job.folder):
                return False
            prepare(complete)
            forget_failure(job.folder)
            for search in self._searches:
                search.begin(job.folder)
            self.launcher.start(job.folder, processes=1 if job.kind == "equivalence" else self.processes)
            self._claims[job.folder] = held.pop_all()
        return True

    def _completed(self, job: Job) -> Job | None:
        """The job with what searches and backbones add to it; None if that is not there yet, or never will be."""
        config = job.config
        if job.tuned_by is not None:
            search = next(search for search in self._searches if search.record.name == job.tuned_by)
            if not search.is_complete:
                return None
            with planning(self.plan.folder):
                values = search.best()
            if values is None:
                self._block(job, f"every point of the search {job.tuned_by} has failed")
                return None
            config = with_values(config, dict(values))
        if job.backbone is not None:
            if job.backbone in self.outcome.failed or job.backbone in self.outcome.blocked:
                self._block(job, f"its backbone in {job.backbone} has failed")
                return None
            if not (job.backbone / RESULT).exists():
                return None
            config = with_values(config, {"model.backbone": job.backbone.resolve()})
        return replace(job, config=config)

    def _block(self, job: Job, reason: str) -> None:
        self.outcome.blocked[job.folder] = reason
        self.reporter.failed(job, f"not started: {reason}")

    def _note(self, ended: Ended) -> None:
        """A process that was started here has ended."""
        job = self._jobs[ended.folder]
        if not (ended.folder / RESULT).exists() and ended.exit_code != IN_USE:
            message = ended.message or f"its process ended with exit code {ended.exit_code}, without a result"
            record_failure(ended.folder, message, ended.exit_code)
            self.outcome.failed[ended.folder] = message
            self.reporter.failed(job, message)
        self._claims.pop(ended.folder).close()

    def _collect(self) -> None:
        """See what has finished, here or elsewhere, or failed elsewhere since this began."""
        for folder, job in self._jobs.items():
            if folder in self.outcome or folder in self._claims:
                continue
            if (folder / RESULT).exists():
                self.outcome.finished.add(folder)
                self.reporter.finished(job)
            elif (message := self._failed_elsewhere(folder)) is not None:
                self.outcome.failed[folder] = message
                self.reporter.failed(job, message)
        for search in self._searches:
            search.settle(self.outcome.failed)

    def _failed_elsewhere(self, folder: Path) -> str | None:
        """Why a run has failed since this began; one that failed earlier is tried again."""
        path = folder / FAILURE
        if not path.exists() or is_locked(folder):
            return None
        failure = json.loads(path.read_text())
        return str(failure["message"]) if failure["time"] >= self._began else None

    def _leave(self) -> None:
        self.launcher.stop()
        left = sum(folder not in self.outcome for folder in self._jobs)
        raise InterruptedTraining(
            self.stop.signal,
            f"stopped with {left} of {len(self._jobs)} runs to do; those that were running have saved.\n"
            "To go on: the same command.",
        )


def prepare(job: Job) -> None:
    """Write what a worker needs into a run's folder, or check that it is there.

    Raises:
        OtherConfigError: If the folder holds a run with another config.
    """
    config = checked = replace(job.config, out=job.folder)
    if job.backbone is not None and (job.folder / CONFIG).exists():
        # The study may have been moved, and its backbones with it.
        checked = replace(config, model=read_config(job.folder).model)
    claim(job.folder, checked)
    write_kind(job.folder, job.kind)
    if read_config(job.folder) != config:
        # In where it runs only: the rest was checked.
        write_json(job.folder / CONFIG, to_dict(config))


@contextmanager
def planning(folder: Path) -> Iterator[None]:
    """Hold a study while it is planned, or a search is decided; waits for others that do the same.

    Raises:
        StorageError: If another one does not come to an end.
    """
    deadline = time.monotonic() + PATIENCE
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(folder, PLAN_LOCK))
                break
            except FolderInUseError as error:
                if time.monotonic() > deadline:
                    raise StorageError(f"{folder} is being planned by another process for too long: {error}") from error
                time.sleep(0.05)
        yield
