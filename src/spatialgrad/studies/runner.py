"""Run jobs: start what can start, record what has ended, and share the work with other commands.

Where the jobs come from is up to their source: `PlanJobs` has those of a plan with its grid searches, and
`spatialgrad.studies.tune` asks Optuna for the next one. Whoever executes a run of a plan holds `launch.lock` in its
folder. Several commands on the same study, on one machine or on several that share a file system, therefore divide its
runs among them.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from spatialgrad.studies.archive import ArchivedRuns, add_to_archive, archive_of, data_fingerprint, read_taken, take
from spatialgrad.studies.console import StudyReporter, counted
from spatialgrad.studies.launch import OUTPUT, PATIENCE, Ended, Executor, LocalExecutor
from spatialgrad.studies.plan import Job, Plan
from spatialgrad.studies.record import STUDY, StudyRecord, read_choices, read_study, start_field
from spatialgrad.studies.registry import FailedRunsError
from spatialgrad.studies.search import decide
from spatialgrad.studies.status import why_not_planned
from spatialgrad.train.config import with_values
from spatialgrad.train.dry_run import check_training
from spatialgrad.train.errors import (
    EXIT_NO_DATA,
    ConfigError,
    DamagedFileError,
    FolderInUseError,
    InterruptedTraining,
    OtherConfigError,
    StorageError,
)
from spatialgrad.train.identity import Identity
from spatialgrad.train.locks import is_locked, locked
from spatialgrad.train.methods import find_method
from spatialgrad.train.run import FAILURE, RESULT, Run
from spatialgrad.train.signals import Stop

LAUNCH_LOCK, PLAN_LOCK = "launch.lock", "plan.lock"
POLL = 0.3
"""Seconds between two looks at running runs, and at what other commands do."""
PLAN_PATIENCE = 60.0
"""Seconds to wait for another command that is planning."""


class Jobs(Protocol):
    """A source of jobs."""

    def next(self) -> Job | None:
        """A job that can start now, prepared in its folder; None if there is none at present."""

    def note(self, job: Job, ended: Ended) -> None:
        """Record the end of a job that `next` returned."""

    def look(self) -> Iterable[Path]:
        """Look at what has changed on disk; returns the folders of runs that are to be stopped."""

    @property
    def is_done(self) -> bool:
        """Whether no job is left, apart from those that are running."""

    def describe_rest(self) -> str:
        """What is unfinished, for the message after a signal."""

    def close(self) -> None:
        """Release what is held."""


def run_jobs(jobs: Jobs, executor: Executor, reporter: StudyReporter, stop: Stop, *, processes: int = 1) -> None:
    """Run all jobs of a source; the executor is closed afterwards.

    Args:
        jobs: Where they come from.
        executor: Executes them.
        reporter: Reports progress.
        stop: Receives signals.
        processes: Number of processes per run.

    Raises:
        InterruptedTraining: If a signal arrived; every run has saved.
    """
    running: dict[Future[Ended], Job] = {}
    try:
        while running or not jobs.is_done:
            if stop.signal:
                reporter.message("Stopping: the runs are saving their checkpoints.")
                for job in running.values():
                    executor.cancel(job.folder)
                wait(running, timeout=2 * PATIENCE)
                raise InterruptedTraining(stop.signal, f"{jobs.describe_rest()}\nRun the same command again to resume.")
            while len(running) < executor.slots and (started := jobs.next()) is not None:
                alone = find_method(started.config.method.name).single_process
                running[executor.submit(started.folder, processes=1 if alone else processes)] = started
            if running:
                done, _ = wait(running, POLL, FIRST_COMPLETED)
            else:
                done = set()
                time.sleep(0.0 if jobs.is_done else POLL)
            for future in done:
                jobs.note(running.pop(future), future.result())
            for folder in jobs.look():
                executor.cancel(folder)
            reporter.look(list(running.values()))
    finally:
        executor.close()
        jobs.close()
        reporter.stop()


def run_plan(
    plan: Plan, executor: Executor, *, processes: int = 1, archive: Path | None = None, console: Console | None = None
) -> None:
    """Run a plan, report its progress, and stop cleanly on a signal.

    Args:
        plan: The runs.
        executor: Executes them.
        processes: Number of processes per run.
        archive: Folder of archives: finished runs are archived there at once, and not trained if they are there.
        console: Where to report; by default the standard output.

    Raises:
        FailedRunsError: If runs failed; all others have finished.
        InterruptedTraining: If a signal arrived; every run has saved.
    """
    reporter, record, stop = StudyReporter(console), plan.record, Stop()
    reporter.message(f"{record.heading}\n  {record.differences}\n  in {plan.folder}")
    with stop.listening():
        if isinstance(executor, LocalExecutor):  # other machines may have other folders and devices
            check_first_run(plan, executor, processes)
        jobs = PlanJobs(plan, reporter, processes=processes, archive=archive)
        reporter.start(len(plan.jobs), len(jobs.finished))
        run_jobs(jobs, executor, reporter, stop, processes=processes)
    if jobs.failed:
        lines = [f"  {folder}: {(message.splitlines() or [''])[0]}" for folder, message in jobs.failed.items()]
        raise FailedRunsError(
            "\n".join([f"{len(jobs.failed)} of {counted(len(plan.jobs), 'run')} failed:", *lines])
            + f"\nThe full output is in {OUTPUT} of each run. Run the same command again to retry them.\n"
            f"Show the others: spatialgrad report {shlex.quote(str(plan.folder))}"
        )
    results = f"spatialgrad report {shlex.quote(str(plan.folder))}"
    reporter.message(f"{counted(len(plan.jobs), 'run')} finished. Show the results: {results}")


def check_first_run(plan: Plan, executor: LocalExecutor, processes: int = 1) -> None:
    """Build what the first run of a plan that has not begun will train, so that an error of all runs is found once.

    Raises:
        TrainError: If the run cannot start; nothing has been written.
        DataError: If its data set is missing or damaged.
    """
    if 0 < len(executor.gpus) < processes:
        raise ConfigError(f"--processes {processes}: this machine has {len(executor.gpus)} GPUs; use at most so many")
    if any(Run.open(job.folder).exists for job in plan.jobs):
        return
    first = next((job.config for job in plan.jobs if job.tuned_by is None and job.backbone is None), None)
    if first is not None:
        alone = find_method(first.method.name).single_process
        check_training(first, processes=1 if alone else processes)


@contextmanager
def planning(folder: Path) -> Iterator[None]:
    """Lock a study while it is planned or archived or a search is decided; waits for other commands that do the same.

    Raises:
        StorageError: If another command does not release it in time.
    """
    deadline = time.monotonic() + PLAN_PATIENCE
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(folder, PLAN_LOCK))
                break
            except FolderInUseError as error:
                if time.monotonic() > deadline:
                    raise StorageError(f"{folder} has been locked for {PLAN_PATIENCE:.0f} s: {error}") from error
                time.sleep(0.05)
        yield


def prepare(job: Job) -> None:
    """Write a run's config into its folder, or check the one that is there.

    Raises:
        ConfigError: If the config that is there cannot be read.
        OtherConfigError: If the folder holds another run.
    """
    try:
        Run.open(job.folder).plan(replace(job.config, out=job.folder))
    except DamagedFileError as error:
        raise ConfigError(f"{error}. Restore the file, or move the folder away.") from error


class PlanJobs:
    """The jobs of a plan, in its order; those that depend on a search or another run wait for it.

    Args:
        plan: The runs.
        reporter: Reports progress.
        processes: Number of processes per run.
        archive: Folder of archives, or None.
    """

    def __init__(self, plan: Plan, reporter: StudyReporter, *, processes: int = 1, archive: Path | None = None) -> None:
        self.plan, self.reporter, self.processes = plan, reporter, processes
        self.finished: set[Path] = set()
        self.failed: dict[Path, str] = {}
        """Why runs failed, or could not start: a run they depend on failed, or their folders hold something else."""
        self._jobs = {job.folder: job for job in plan.jobs}
        # What failed earlier is tried again. Clocks of several machines disagree, hence the content.
        self._earlier = {folder: content for folder in self._jobs if (content := _content(folder / FAILURE))}
        self._claims: dict[Path, ExitStack] = {}
        self._taken = read_taken(plan.folder)
        with planning(plan.folder):
            record = plan.record
            if (plan.folder / STUDY).exists():
                # Another command may have extended the study after this one was planned.
                record = record.joined(read_study(plan.folder))
            record.write(plan.folder)
            self._record: StudyRecord = record
        self._archive = archive
        self._archived = None if archive is None else ArchivedRuns(archive, reporter.message)
        self._collect()
        if archive is not None and (number := self._take_all()):
            reporter.message(f"Reusing {counted(number, 'archived result')} from {archive} (no weights).")
        self._add_to_archive(self.finished)

    def next(self) -> Job | None:
        """The first job whose dependencies are there and that no other command has."""
        for job in self._open_jobs():
            complete = self._completed(job)
            if complete is not None and not self._take(complete) and self._claim(complete):
                return complete
        return None

    def note(self, job: Job, ended: Ended) -> None:
        """Record the end of a process."""
        if not self._run(job).is_finished and ended.exit_code != FolderInUseError.exit_code:
            message = ended.message or f"the process ended with exit code {ended.exit_code} and without a result"
            Run.open(job.folder).record_failure(message, ended.exit_code)
            self._fail(job, message)
            if ended.exit_code in (ConfigError.exit_code, EXIT_NO_DATA):
                self._refuse_others_like(job, message)
        self._claims.pop(job.folder).close()

    def look(self) -> Iterable[Path]:
        """Collect what has finished here or elsewhere; nothing is ever stopped."""
        self._add_to_archive(self._collect())
        return ()

    @property
    def is_done(self) -> bool:
        """Whether all have finished, failed or cannot start."""
        return len(self.finished) + len(self.failed) == len(self._jobs)

    def describe_rest(self) -> str:
        """How many are unfinished."""
        left = len(self._jobs) - len(self.finished) - len(self.failed)
        total = counted(len(self._jobs), "run")
        return f"stopped with {left} of {total} unfinished; the running ones have saved."

    def close(self) -> None:
        """Release the locks."""
        for held in self._claims.values():
            held.close()

    def _open_jobs(self) -> list[Job]:
        """The jobs that have not ended and that this command does not run."""
        known = {*self.finished, *self.failed, *self._claims}
        return [job for folder, job in self._jobs.items() if folder not in known]

    def _name(self, folder: Path) -> str:
        return folder.relative_to(self.plan.folder).as_posix()

    def _run(self, job: Job) -> Run:
        """The run in a job's folder or, if it has no result, the archived one that is used instead."""
        run = Run.open(job.folder)
        return run if run.is_finished else self._taken.get(self._name(job.folder), run)

    def _fail(self, job: Job, message: str, *, started: bool = True) -> None:
        self.failed[job.folder] = message
        self.reporter.failed(job, message if started else f"not started: {message}")

    def _claim(self, job: Job) -> bool:
        """Lock and prepare a run's folder, unless another command has it."""
        with ExitStack() as held:
            try:
                held.enter_context(locked(job.folder, LAUNCH_LOCK))
            except FolderInUseError:
                return False
            if is_locked(job.folder) or (job.folder / RESULT).exists() or self._failed_elsewhere(job.folder):
                return False
            try:
                prepare(job)
            except (ConfigError, OtherConfigError) as error:
                self._fail(job, str(error), started=False)
                return False
            Run.open(job.folder).forget_failure()
            self._claims[job.folder] = held.pop_all()
        return True

    def _completed(self, job: Job, *, start_needed: bool = True) -> Job | None:
        """The job completed by its search and its backbone; None if they have not finished, or failed.

        Args:
            job: To complete.
            start_needed: Whether the run that it starts from must have finished.
        """
        config = job.config
        if job.tuned_by is not None:
            search = next(search for search in self.plan.searches if search.name == job.tuned_by)
            folders = {self.plan.folder / run.folder for point in search.points for run in point.runs}
            if not folders <= self.finished | self.failed.keys():
                return None
            try:
                with planning(self.plan.folder):
                    values = decide(self.plan.folder, search, self._value)
            except DamagedFileError as error:
                self._fail(job, str(error), started=False)
                return None
            if values is None:
                self._fail(job, f"every point of the search {job.tuned_by} failed", started=False)
                return None
            config = with_values(config, values)
        if job.backbone is not None:
            if start_needed and job.backbone in self.failed:
                self._fail(job, f"the run that it starts from, {job.backbone}, failed", started=False)
                return None
            if start_needed and not (job.backbone / RESULT).exists():
                return None
            config = with_values(config, {start_field(config, self._jobs[job.backbone].config): job.backbone.resolve()})
        return replace(job, config=config)

    def _value(self, name: str) -> float | None:
        folder = self.plan.folder / name
        result = self._run(self._jobs[folder]).result if folder in self.finished else None
        return None if result is None else result.value

    def _take_all(self) -> int:
        """Use the archived results of all runs that have one; returns their number."""
        starts = {job.backbone for job in self.plan.jobs}
        # Runs that others start from come last: their weights are needed unless all the others are there.
        order = sorted(self._open_jobs(), key=lambda job: job.folder in starts)
        complete = (self._completed(job, start_needed=False) for job in order)
        return sum(job is not None and self._take(job) for job in complete)

    def _take(self, job: Job) -> bool:
        """Use the archived result of a run that has not begun, if there is one and its weights are not needed."""
        needed = any(each.backbone == job.folder and each.folder not in self.finished for each in self.plan.jobs)
        if self._archived is None or needed or Run.open(job.folder).exists:
            return False
        run = self._archived.find(job.config, self.processes, lambda: data_fingerprint(job.config))
        if run is None:
            return False
        with planning(self.plan.folder):
            take(self.plan.folder, self._name(job.folder), run)
        self._taken[self._name(job.folder)] = run
        self.finished.add(job.folder)
        return True

    def _refuse_others_like(self, job: Job, message: str) -> None:
        """Do not try a refused config with further seeds: the error would be the same."""
        refused = Identity(replace(job.config, seed=0)).digest
        for other in self._open_jobs():
            if Identity(replace(other.config, seed=0)).digest == refused:
                self._fail(other, f"as {job.title}: {message.splitlines()[0]}", started=False)

    def _collect(self) -> list[Path]:
        """Collect runs that have finished, here or elsewhere, or failed elsewhere since this command started."""
        planned, found = None, []
        for job in self._open_jobs():
            folder, run = job.folder, self._run(job)
            if run.is_finished:
                planned = planned or self._record.planned_configs(self._choices())
                try:
                    problem = why_not_planned(run, planned[self._name(folder)])
                    problem = f"{folder}: {problem}. Move the folder away to train the planned run." if problem else ""
                except (ConfigError, DamagedFileError) as error:
                    problem = f"{error}. Restore the file, or delete {RESULT} to finish the run again."
                if problem:
                    self._fail(job, problem)
                else:
                    self.finished.add(folder)
                    self.reporter.finished(job, run)
                    found.append(folder)
            elif (message := self._failed_elsewhere(folder)) is not None:
                self._fail(job, message)
        return found

    def _add_to_archive(self, finished: Iterable[Path]) -> None:
        """Archive finished runs, and what searches have chosen."""
        runs = {self._name(folder): self._run(self._jobs[folder]) for folder in sorted(finished)}
        if self._archive is None or not runs:
            return
        with planning(self.plan.folder):
            path = archive_of(self.plan.folder, self._archive)
            problems = add_to_archive(path, self._record, self._choices(), runs)
        for name, problem in problems.items():
            self.reporter.message(f"{self.plan.folder / name} has finished, but is not archived: {problem}")

    def _failed_elsewhere(self, folder: Path) -> str | None:
        """Why a run failed after this command started; one that failed earlier is tried again."""
        content = _content(folder / FAILURE)
        if not content or content == self._earlier.get(folder) or is_locked(folder):
            return None
        try:
            return Run.open(folder).failure
        except DamagedFileError as error:
            return str(error)

    def _choices(self) -> dict[str, dict[str, Any]]:
        try:
            return read_choices(self.plan.folder, self._record)
        except DamagedFileError:  # the run that needs the choice says so
            return {}


def _content(path: Path) -> bytes:
    """The content of a file; empty if there is none, or it is being replaced."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
