"""Run a plan: start what can start, record what has ended, and share the work with other commands.

Whoever executes a run holds `launch.lock` in its folder. Several commands on the same study, on one machine or on
several that share a file system, therefore divide its runs among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from spatialgrad.data.registry import find_source
from spatialgrad.data.source import data_root
from spatialgrad.studies.errors import FailedRunsError
from spatialgrad.studies.identity import other_run, planned_values
from spatialgrad.studies.kept import copy_choices, keep_record, why_not_kept
from spatialgrad.studies.plan import Job, Plan
from spatialgrad.studies.record import STUDY, read_study, start_field
from spatialgrad.studies.run.console import StudyReporter, counted
from spatialgrad.studies.run.folders import planning, prepare
from spatialgrad.studies.run.launch import Ended, Launcher
from spatialgrad.studies.run.restore import restore_runs
from spatialgrad.studies.run.search import GridSearch
from spatialgrad.studies.run.status import FAILURE, OUTPUT, forget_failure, read_failure, read_headline, record_failure
from spatialgrad.train.config import with_values
from spatialgrad.train.errors import (
    ConfigError,
    DamagedFileError,
    FolderInUseError,
    InterruptedTraining,
    OtherConfigError,
)
from spatialgrad.train.locks import is_locked, locked
from spatialgrad.train.methods import METHODS
from spatialgrad.train.run import RESULT
from spatialgrad.train.signals import Stop

LAUNCH_LOCK = "launch.lock"
POLL = 0.5
"""Seconds between two looks at what other commands do."""


@dataclass
class Outcome:
    """What became of the jobs of a plan."""

    finished: set[Path] = field(default_factory=set)
    failed: dict[Path, str] = field(default_factory=dict)
    blocked: dict[Path, str] = field(default_factory=dict)
    """Runs that could not start: a run they depend on failed, or their folders hold something else."""

    def __contains__(self, folder: Path) -> bool:
        return folder in self.finished or folder in self.failed or folder in self.blocked


def run_plan(
    plan: Plan, launcher: Launcher, *, processes: int = 1, keep: Path | None = None, console: Console | None = None
) -> None:
    """Run a plan, report its progress, and stop cleanly on a signal.

    Args:
        plan: The runs.
        launcher: Starts them.
        processes: Number of processes per run.
        keep: Folder of kept studies: finished runs are kept there at once, and runs that are there are restored.
        console: Where to report; by default the standard output.

    Raises:
        FailedRunsError: If runs failed; all others have finished.
        InterruptedTraining: If a signal arrived; every run has saved.
    """
    reporter = StudyReporter(console)
    record = plan.record
    reporter.message(f"{record.heading}\n  {record.differences}\n  in {plan.folder}")
    stop = Stop()
    with stop.listening():
        outcome = Runner(plan, launcher, reporter, stop, processes=processes, keep=keep).run()
    failed = {**outcome.failed, **outcome.blocked}
    if failed:
        lines = [f"  {folder}: {(message.splitlines() or [''])[0]}" for folder, message in failed.items()]
        raise FailedRunsError(
            "\n".join([f"{len(failed)} of {counted(len(plan.jobs), 'run')} failed:", *lines])
            + f"\nThe full output is in {OUTPUT} of each run. Run the same command again to retry them.\n"
            f"Show the others: spatialgrad report {plan.folder}"
        )
    reporter.message(f"{counted(len(plan.jobs), 'run')} finished. Show the results: spatialgrad report {plan.folder}")


def check_data(plan: Plan) -> None:
    """Check that the data sets of all runs are there, in the order of the plan.

    Raises:
        MissingDataError: If one is missing; the message says how to get it.
    """
    for name, root in dict.fromkeys((job.config.data.name, job.config.data.root) for job in plan.jobs):
        source, folder = find_source(name), data_root(root)
        if source.locate(folder) is None:
            source.load(folder)


class Runner:
    """Runs a plan.

    Args:
        plan: The runs.
        launcher: Starts them.
        reporter: Reports progress.
        stop: Receives signals.
        processes: Number of processes per run.
        keep: Folder of kept studies, or None to keep nothing.
    """

    def __init__(
        self,
        plan: Plan,
        launcher: Launcher,
        reporter: StudyReporter,
        stop: Stop,
        *,
        processes: int = 1,
        keep: Path | None = None,
    ) -> None:
        self.plan, self.launcher, self.reporter, self.stop, self.processes = plan, launcher, reporter, stop, processes
        self.outcome = Outcome()
        self._jobs = {job.folder: job for job in plan.jobs}
        # What failed earlier is tried again. Clocks of several machines disagree, hence the content.
        self._earlier = {folder: content for folder in self._jobs if (content := _content(folder / FAILURE))}
        self._claims: dict[Path, ExitStack] = {}
        with planning(plan.folder):
            record = plan.record
            if (plan.folder / STUDY).exists():
                # Another command may have extended the study after this one was planned.
                record = record.joined(read_study(plan.folder))
            record.write(plan.folder)
            self._kept = None if keep is None else keep / plan.folder.resolve().name
            if keep is not None and self._kept is not None:
                keep_record(record, self._kept)
                if restored := restore_runs(plan, keep, reporter.message):
                    reporter.message(f"{counted(len(restored), 'finished run')} restored from {keep}, without weights")
            self._record = record
            self._searches = [GridSearch(plan.folder, record, reporter.message) for record in plan.searches]

    def run(self) -> Outcome:
        """Run everything that can be run.

        Raises:
            InterruptedTraining: If a signal arrived; every run has saved.
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
        """Start a run if its dependencies are there and no other command has it."""
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
            try:
                prepare(complete)
            except (ConfigError, OtherConfigError) as error:
                self._block(job, str(error))
                return False
            forget_failure(job.folder)
            for search in self._searches:
                search.begin(job.folder)
            alone = METHODS[job.config.method.name].single_process
            self.launcher.start(job.folder, processes=1 if alone else self.processes)
            self._claims[job.folder] = held.pop_all()
        return True

    def _completed(self, job: Job) -> Job | None:
        """The job completed by its search and its backbone; None if they have not finished, or failed."""
        config = job.config
        if job.tuned_by is not None:
            search = next(search for search in self._searches if search.record.name == job.tuned_by)
            if not search.is_complete:
                return None
            with planning(self.plan.folder):
                values = search.best()
            if values is None:
                self._block(job, f"every point of the search {job.tuned_by} failed")
                return None
            config = with_values(config, dict(values))
        if job.backbone is not None:
            if job.backbone in self.outcome.failed or job.backbone in self.outcome.blocked:
                self._block(job, f"its backbone in {job.backbone} failed")
                return None
            if not (job.backbone / RESULT).exists():
                return None
            config = with_values(config, {start_field(config.task): job.backbone.resolve()})
        return replace(job, config=config)

    def _block(self, job: Job, reason: str) -> None:
        self.outcome.blocked[job.folder] = reason
        self.reporter.failed(job, f"not started: {reason}")

    def _note(self, ended: Ended) -> None:
        """Record the end of a process that was started here."""
        job = self._jobs[ended.folder]
        if not (ended.folder / RESULT).exists() and ended.exit_code != FolderInUseError.exit_code:
            message = ended.message or f"the process ended with exit code {ended.exit_code} and without a result"
            record_failure(ended.folder, message, ended.exit_code)
            self.outcome.failed[ended.folder] = message
            self.reporter.failed(job, message)
        self._claims.pop(ended.folder).close()

    def _collect(self) -> None:
        """Collect runs that have finished, here or elsewhere, or failed elsewhere since this command started."""
        planned: dict[str, dict[str, Any]] = {}
        for folder, job in self._jobs.items():
            if folder in self.outcome or folder in self._claims:
                continue
            if (folder / RESULT).exists():
                planned = planned or planned_values(self.plan.folder, self._record)
                name = folder.relative_to(self.plan.folder).as_posix()
                if problem := self._problem(folder, planned[name]):
                    self.outcome.failed[folder] = problem
                    self.reporter.failed(job, problem)
                else:
                    self.outcome.finished.add(folder)
                    if self._kept is not None and (problem := why_not_kept(self.plan.folder, name, self._kept)):
                        self.reporter.message(f"{folder} has finished, but is not kept: {problem}")
                    self.reporter.finished(job)
            elif (message := self._failed_elsewhere(folder)) is not None:
                self.outcome.failed[folder] = message
                self.reporter.failed(job, message)
        for search in self._searches:
            search.settle(self.outcome.failed)
        if self._kept is not None:
            copy_choices(self._record, self.plan.folder, self._kept)

    def _failed_elsewhere(self, folder: Path) -> str | None:
        """Why a run failed after this command started; one that failed earlier is tried again."""
        content = _content(folder / FAILURE)
        if not content or content == self._earlier.get(folder) or is_locked(folder):
            return None
        try:
            return read_failure(folder)
        except DamagedFileError as error:
            return str(error)

    def _problem(self, folder: Path, planned: Mapping[str, Any]) -> str:
        """Why a finished run does not count: it is not the planned one, or its files are damaged."""
        try:
            problem = other_run(folder, planned)
            if not problem:
                read_headline(folder)
        except DamagedFileError as error:
            return f"{folder}: {error}. Restore the file, or delete {RESULT} to finish the run again."
        return f"{folder}: {problem}. Move the folder away to train the planned run." if problem else ""

    def _leave(self) -> None:
        self.reporter.message("Stopping: the runs finish their current step and save.")
        self.launcher.stop()
        left = sum(folder not in self.outcome for folder in self._jobs)
        raise InterruptedTraining(
            self.stop.signal,
            f"stopped with {left} of {counted(len(self._jobs), 'run')} unfinished; the running ones have saved.\n"
            "Run the same command again to resume.",
        )


def _content(path: Path) -> bytes:
    """The content of a file; empty if there is none, or it is being replaced."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
