"""A search over k with Optuna's sampler and pruner: each trial is a run in its own folder, stopped if it is hopeless.

The run knows nothing of the search. This process reads the metrics that it writes after every epoch, asks the pruner,
and stops its process as Ctrl-C would. A trial that is running while its process is gone was interrupted: the next
command takes it over, and the run resumes from its checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from spatialgrad.studies.errors import FailedRunsError
from spatialgrad.studies.identity import other_run, planned_values
from spatialgrad.studies.own.tune import FIELD, check_same_search, first_record, label, search_in, with_k
from spatialgrad.studies.plan import Job
from spatialgrad.studies.record import STUDY, PointRecord, RunRecord, StudyRecord, read_study
from spatialgrad.studies.run.console import counted
from spatialgrad.studies.run.folders import prepare
from spatialgrad.studies.run.launch import Ended, Launcher
from spatialgrad.studies.run.status import OUTPUT, format_metric, read_headline
from spatialgrad.studies.run.trials import Trial, Trials
from spatialgrad.train.config import TrainConfig
from spatialgrad.train.console import duration
from spatialgrad.train.errors import (
    DamagedFileError,
    DivergedError,
    FolderInUseError,
    InterruptedTraining,
    OtherConfigError,
)
from spatialgrad.train.locks import is_locked
from spatialgrad.train.run import RESULT
from spatialgrad.train.signals import Stop

TUNE_LOCK = "tune.lock"
POLL = 0.3
"""Seconds between two looks at the metrics of running trials."""


class Tuning:
    """The search over k in a folder; the caller holds `TUNE_LOCK` of it.

    Args:
        folder: Of the study.
        config: The training; its own k is tried first.
        bounds: Smallest and largest k.
        prune: Whether hopeless trials are stopped early.
        command: The command that repeats the search.
        report: Called with lines of text.

    Raises:
        OtherConfigError: If the folder holds another search, or another study.
    """

    def __init__(
        self,
        folder: Path,
        config: TrainConfig,
        bounds: tuple[float, float],
        *,
        prune: bool = True,
        command: str = "",
        report: Callable[[str], None] = print,
    ) -> None:
        self.folder, self.config, self.bounds, self._report = folder, config, bounds, report
        self._record = self._read_record(command)
        self._trials = Trials(folder, config, bounds, metric=self._record.metric, prune=prune, report=report)
        self._running: dict[Path, int] = {}
        self._awaited: set[Path] = set()
        self._record.write(folder)

    def run(self, launcher: Launcher, num_trials: int, stop: Stop, *, processes: int = 1) -> None:
        """Run trials until there are as many as wanted; those of earlier commands count.

        Raises:
            FailedRunsError: If a trial failed for another reason than its k.
            InterruptedTraining: If a signal arrived; every trial has saved.
        """
        try:
            while True:
                if stop.signal:
                    self._leave(launcher, stop, num_trials)
                self._start_what_can(launcher, num_trials, processes)
                for ended in launcher.ended(POLL):
                    self._note(ended, launcher, num_trials)
                for folder, number in list(self._running.items()):
                    self._watch(folder, number, launcher, num_trials)
                if not launcher.running and len(self.trials) >= num_trials and not self._trials.running:
                    return
        finally:
            launcher.close()

    @property
    def trials(self) -> list[Trial]:
        """The finished trials, in the order in which they were begun."""
        return self._trials.finished

    def _read_record(self, command: str) -> StudyRecord:
        if not (self.folder / STUDY).exists():
            return first_record(self.config, self.bounds, command)
        before = read_study(self.folder)
        try:
            check_same_search(before, self.config, self.bounds)
        except OtherConfigError as error:
            raise OtherConfigError(f"{self.folder}: {error}") from error
        return replace(before, command=command)

    def _start_what_can(self, launcher: Launcher, num_trials: int, processes: int) -> None:
        interrupted = [trial for trial in self._trials.running if trial.folder not in self._running]
        for trial in interrupted:
            if is_locked(trial.folder):
                # The process of a command that was killed saves and ends; new trials would learn nothing from it.
                if trial.folder not in self._awaited:
                    self._report(f"Waiting for the process that is saving in {trial.folder}.")
                self._awaited.add(trial.folder)
                return
        for trial in interrupted:
            if launcher.has_room:
                self._start(trial, launcher, processes, num_trials)
        while launcher.has_room and len(self._trials.all) < num_trials:
            self._start(self._trials.ask(), launcher, processes, num_trials)

    def _start(self, trial: Trial, launcher: Launcher, processes: int, num_trials: int) -> None:
        folder = trial.folder
        self._trials.note_folder(trial)
        self._write_record()
        if not (folder / RESULT).exists():
            folder.mkdir(parents=True, exist_ok=True)
            prepare(Job(folder=folder, config=with_k(self.config, trial.k), title=label(trial.k)))
            launcher.start(folder, processes=processes)
        self._running[folder] = trial.number
        if (folder / RESULT).exists():  # it had finished when the last command was killed
            self._note(Ended(folder=folder, exit_code=0), launcher, num_trials)

    def _watch(self, folder: Path, number: int, launcher: Launcher, num_trials: int) -> None:
        """Record what a trial has reached, and stop it if it is hopeless."""
        pruned = self._trials.follow(number)
        if pruned is not None:
            # The journal has it before the process is stopped, so that no command resumes it.
            launcher.cancel(folder)
            self._write_record()
            epoch, value = pruned
            when = f"epoch {epoch + 1} of {self.config.budget.epochs}"
            self._line(number, f"stopped after {when} ({self._format(value)})", num_trials)

    def _note(self, ended: Ended, launcher: Launcher, num_trials: int) -> None:
        """Record the end of a process."""
        number = self._running[ended.folder]
        self._watch(ended.folder, number, launcher, num_trials)
        del self._running[ended.folder]
        if not self._trials.get(number).running:
            return
        try:
            headline = read_headline(ended.folder)
            problem = "" if headline is None else self._how_it_differs(ended.folder)
        except DamagedFileError as error:
            launcher.stop()
            raise DamagedFileError(
                f"{ended.folder}: {error}. Restore the file, or delete {RESULT} to finish the trial again."
            ) from error
        if problem:
            launcher.stop()
            raise OtherConfigError(f"{ended.folder}: {problem}. Move the folder away to train the trial again.")
        if headline is not None:
            self._trials.complete(number, headline.value)
            self._line(number, f"{self._format(headline.value)} in {duration(headline.seconds)}", num_trials)
        elif ended.exit_code == DivergedError.exit_code:
            self._trials.fail(number)
            self._line(number, "diverged", num_trials)
        elif ended.exit_code != FolderInUseError.exit_code:
            launcher.stop()
            raise FailedRunsError(
                f"the trial in {ended.folder} failed: {ended.message}\nThe full output is in its {OUTPUT}. Run the "
                "same command again to retry it; finished trials are kept."
            )
        self._write_record()

    def _how_it_differs(self, folder: Path) -> str:
        """How the finished run in a trial's folder differs from the trial; empty if it does not."""
        return other_run(folder, planned_values(self.folder, self._record)[folder.relative_to(self.folder).as_posix()])

    def _leave(self, launcher: Launcher, stop: Stop, num_trials: int) -> None:
        self._report("Stopping: the runs finish their current step and save.")
        launcher.stop()
        raise InterruptedTraining(
            stop.signal,
            f"stopped with {len(self.trials)} of {counted(num_trials, 'trial')} finished; the running ones have "
            "saved.\nRun the same command again to resume.",
        )

    def _line(self, number: int, what: str, num_trials: int) -> None:
        width = len(str(num_trials))
        self._report(f"[{len(self.trials):>{width}}/{num_trials}] {label(self._trials.get(number).k)}: {what}")

    def _format(self, value: float) -> str:
        return format_metric(self._record.metric, value)

    def _write_record(self) -> None:
        """List the trials in the study's record, except those without a result: stopped early or diverged."""
        listed = [trial for trial in self._trials.all if trial.running or trial.value is not None]
        points = tuple(
            PointRecord(
                values={FIELD: trial.k},
                runs=(RunRecord(folder=str(trial.folder.relative_to(self.folder)), seed=self.config.seed),),
            )
            for trial in sorted(listed, key=lambda trial: trial.k)
        )
        search = replace(search_in(self._record), points=points)
        self._record = replace(self._record, searches=(search,))
        self._record.write(self.folder)
