"""A search over k with Optuna's sampler and pruner: each trial is a run in its own folder, stopped if it is hopeless.

The run knows nothing of the search. This process reads the metrics that it writes after every epoch, asks the pruner,
and stops its process as Ctrl-C would. A trial that is running while its process is gone was interrupted: the next
command takes it over, and the run resumes from its checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spatialgrad.studies.errors import FailedRunsError
from spatialgrad.studies.files import read_object
from spatialgrad.studies.own.tune import (
    FIELD,
    SEARCH,
    check_same_search,
    first_record,
    label,
    rounded,
    search_in,
    with_k,
)
from spatialgrad.studies.plan import Job
from spatialgrad.studies.record import STUDY, PointRecord, RunRecord, StudyRecord, read_study
from spatialgrad.studies.run.console import counted
from spatialgrad.studies.run.folders import prepare
from spatialgrad.studies.run.journal import open_journal, quiet
from spatialgrad.studies.run.launch import Ended, Launcher
from spatialgrad.studies.run.status import OUTPUT, format_metric, read_headline
from spatialgrad.train.config.groups import TrainConfig
from spatialgrad.train.config.io import flatten
from spatialgrad.train.engine.signals import Stop
from spatialgrad.train.errors import (
    DamagedFileError,
    DivergedError,
    FolderInUseError,
    InterruptedTraining,
    OtherConfigError,
)
from spatialgrad.train.runs.console import duration
from spatialgrad.train.runs.folder import CONFIG, METRICS, RESULT, is_locked, read_lines

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

TUNE_LOCK = "tune.lock"
POLL = 0.3
"""Seconds between two looks at the metrics of running trials."""
RANDOM_TRIALS = 5
"""Number of trials before the sampler and the pruner have enough to learn from."""
PATIENT_SHARE = 3
"""No trial is stopped before one epoch in so many is over."""
RUN = "run"
"""What is noted about a trial: its folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A finished trial."""

    k: float
    value: float | None
    """The headline metric as a share; None if it was stopped early, or diverged."""
    pruned: bool
    """Whether it was stopped early."""


class Tuning:
    """The search over k in a folder; the caller holds `TUNE_LOCK` of it.

    Args:
        folder: Of the study.
        config: The training; its own k is tried first.
        bounds: Smallest and largest k.
        metric: Name of the headline metric.
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
        metric: str,
        prune: bool = True,
        command: str = "",
        report: Callable[[str], None] = print,
    ) -> None:
        from optuna.distributions import BaseDistribution, FloatDistribution

        self.folder, self.config, self.bounds, self.metric, self._report = folder, config, bounds, metric, report
        self._distributions: dict[str, BaseDistribution] = {FIELD: FloatDistribution(*bounds, log=True)}
        self._record = self._read_record(command)
        self._storage, self._study = open_journal(folder, SEARCH, report)
        self._study.pruner = self._pruner(prune)
        self._running: dict[Path, int] = {}
        self._awaited: set[Path] = set()
        self._recover()
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
                if not launcher.running and self._num_ended() >= num_trials and not self._begun():
                    return
        finally:
            launcher.close()

    @property
    def trials(self) -> list[Trial]:
        """The finished trials, in the order in which they were begun."""
        from optuna.trial import TrialState

        return [
            Trial(
                k=_k_of(trial),
                value=trial.value if trial.state is TrialState.COMPLETE else None,
                pruned=trial.state is TrialState.PRUNED,
            )
            for trial in self._all()
            if trial.state.is_finished()
        ]

    def _read_record(self, command: str) -> StudyRecord:
        if not (self.folder / STUDY).exists():
            return first_record(self.config, self.bounds, command)
        before = read_study(self.folder)
        try:
            check_same_search(before, self.config, self.bounds)
        except OtherConfigError as error:
            raise OtherConfigError(f"{self.folder}: {error}") from error
        return replace(before, command=command)

    def _pruner(self, prune: bool) -> Any:
        from optuna.pruners import MedianPruner, NopPruner

        if not prune:
            return NopPruner()
        # Until the first scalings, all trials are the same training.
        patience = max(self.config.scaling.warmup + 1, self.config.budget.epochs // PATIENT_SHARE)
        return MedianPruner(n_startup_trials=RANDOM_TRIALS, n_warmup_steps=patience)

    def _start_what_can(self, launcher: Launcher, num_trials: int, processes: int) -> None:
        interrupted = [trial for trial in self._begun() if self._folder(trial) not in self._running]
        for folder in (self._folder(trial) for trial in interrupted):
            if is_locked(folder):
                # The process of a command that was killed saves and ends; new trials would learn nothing from it.
                if folder not in self._awaited:
                    self._report(f"Waiting for the process that is saving in {folder}.")
                self._awaited.add(folder)
                return
        for trial in interrupted:
            if launcher.has_room:
                self._start(trial, launcher, processes, num_trials)
        while launcher.has_room and self._num_ended() + len(self._begun()) < num_trials:
            self._start(self._ask(), launcher, processes, num_trials)

    def _ask(self) -> FrozenTrial:
        """A new trial, chosen by the sampler."""
        from optuna.samplers import TPESampler

        number = len(self._all())
        if number == 0 and self.bounds[0] <= self.config.scaling.k <= self.bounds[1]:
            self._study.enqueue_trial({FIELD: self.config.scaling.k}, skip_if_exists=True)
        # A sampler of its own for each trial: the state of one that is shared would be lost with this process.
        seed = int.from_bytes(hashlib.sha256(f"tune {number}".encode()).digest()[:4])
        self._study.sampler = TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS)
        with quiet():
            asked = self._study.ask(self._distributions)
        return self._get(asked.number)

    def _start(self, trial: FrozenTrial, launcher: Launcher, processes: int, num_trials: int) -> None:
        folder, k = self._folder(trial), _k_of(trial)
        if RUN not in trial.user_attrs:
            self._storage.set_trial_user_attr(self._id(trial.number), RUN, str(folder.relative_to(self.folder)))
        self._write_record()
        if not (folder / RESULT).exists():
            folder.mkdir(parents=True, exist_ok=True)
            prepare(Job(folder=folder, config=with_k(self.config, k), title=label(k)))
            launcher.start(folder, processes=processes)
        self._running[folder] = trial.number
        if (folder / RESULT).exists():  # it had finished when the last command was killed
            self._note(Ended(folder=folder, exit_code=0), launcher, num_trials)

    def _watch(self, folder: Path, number: int, launcher: Launcher, num_trials: int) -> None:
        """Tell Optuna what a trial has reached, and stop it if it is hopeless."""
        from optuna.trial import TrialState

        trial, last = self._get(number), self.config.budget.epochs - 1
        if trial.state.is_finished():  # it is being stopped
            return
        for epoch, value in self._metrics(folder):
            if epoch in trial.intermediate_values:
                continue
            self._storage.set_trial_intermediate_value(self._id(number), epoch, value)
            if epoch < last and self._study.pruner.prune(self._study, self._get(number)):
                with quiet():
                    self._study.tell(number, state=TrialState.PRUNED)
                # Noted before the process is stopped, so that no command resumes it.
                launcher.cancel(folder)
                self._write_record()
                reached = format_metric(self.metric, value)
                self._line(number, f"stopped after epoch {epoch + 1} of {last + 1} ({reached})", num_trials)
                return

    def _note(self, ended: Ended, launcher: Launcher, num_trials: int) -> None:
        """Record the end of a process."""
        from optuna.trial import TrialState

        number = self._running[ended.folder]
        self._watch(ended.folder, number, launcher, num_trials)
        del self._running[ended.folder]
        if self._get(number).state.is_finished():
            return
        headline = read_headline(ended.folder)
        if headline is not None:
            with quiet():
                self._study.tell(number, headline.value)
            took = duration(headline.seconds)
            self._line(number, f"{format_metric(self.metric, headline.value)} in {took}", num_trials)
        elif ended.exit_code == DivergedError.exit_code:
            with quiet():
                self._study.tell(number, state=TrialState.FAIL)
            self._line(number, "diverged", num_trials)
        elif ended.exit_code != FolderInUseError.exit_code:
            launcher.stop()
            raise FailedRunsError(
                f"the trial in {ended.folder} failed: {ended.message}\nThe full output is in its {OUTPUT}. Run the "
                "same command again to retry it; finished trials are kept."
            )
        self._write_record()

    def _leave(self, launcher: Launcher, stop: Stop, num_trials: int) -> None:
        launcher.stop()
        raise InterruptedTraining(
            stop.signal,
            f"stopped with {self._num_ended()} of {counted(num_trials, 'trial')} finished; the running ones have "
            "saved.\nRun the same command again to resume.",
        )

    def _line(self, number: int, what: str, num_trials: int) -> None:
        width = len(str(num_trials))
        self._report(f"[{self._num_ended():>{width}}/{num_trials}] {label(_k_of(self._get(number)))}: {what}")

    def _metrics(self, folder: Path) -> list[tuple[int, float]]:
        """Epochs, from 0, and the held-out metric of each."""
        name = f"test_{self.metric}"
        try:
            lines = read_lines(folder / METRICS)
        except DamagedFileError:  # the run says so when it resumes
            return []
        return [(int(line["epoch"]), float(line[name])) for line in lines if name in line]

    def _all(self) -> list[FrozenTrial]:
        """All trials that have a k; one whose command was killed before that is forgotten."""
        return [trial for trial in self._study.get_trials(deepcopy=False) if FIELD in trial.params]

    def _begun(self) -> list[FrozenTrial]:
        """The trials that have not ended."""
        from optuna.trial import TrialState

        return [trial for trial in self._all() if trial.state is TrialState.RUNNING]

    def _num_ended(self) -> int:
        return sum(trial.state.is_finished() for trial in self._all())

    def _get(self, number: int) -> FrozenTrial:
        return next(trial for trial in self._study.get_trials(deepcopy=False) if trial.number == number)

    def _id(self, number: int) -> int:
        study = self._storage.get_study_id_from_name(SEARCH)
        return int(self._storage.get_trial_id_from_study_id_trial_number(study, number))

    def _folder(self, trial: FrozenTrial) -> Path:
        place = trial.user_attrs.get(RUN) or f"searches/{SEARCH}/trial-{trial.number:03d}/seed{self.config.seed}"
        return self.folder / place

    def _write_record(self) -> None:
        """List the trials in the study's record, but for those that were stopped early: they have no result."""
        from optuna.trial import TrialState

        kept = (TrialState.COMPLETE, TrialState.RUNNING)
        listed = sorted((trial for trial in self._all() if trial.state in kept), key=_k_of)
        points = tuple(
            PointRecord(
                values={FIELD: _k_of(trial)},
                runs=(RunRecord(folder=str(self._folder(trial).relative_to(self.folder)), seed=self.config.seed),),
            )
            for trial in listed
        )
        search = replace(search_in(self._record), points=points)
        self._record = replace(self._record, searches=(search,))
        self._record.write(self.folder)

    def _recover(self) -> None:
        """Rebuild a journal that is gone from the folders of the trials."""
        from optuna.trial import TrialState, create_trial

        folders = sorted((self.folder / "searches" / SEARCH).glob(f"trial-*/seed{self.config.seed}"))
        if self._study.get_trials(deepcopy=False):
            return
        for folder in folders:
            try:
                k = float(flatten(read_object(folder / CONFIG))[FIELD])
                headline = read_headline(folder)
            except (DamagedFileError, FileNotFoundError, KeyError, TypeError, ValueError):
                continue
            self._study.add_trial(
                create_trial(
                    state=TrialState.RUNNING if headline is None else TrialState.COMPLETE,
                    value=None if headline is None else headline.value,
                    params={FIELD: k},
                    distributions=self._distributions,
                    user_attrs={RUN: str(folder.relative_to(self.folder))},
                    intermediate_values=dict(self._metrics(folder)) if headline is not None else {},
                )
            )


def _k_of(trial: FrozenTrial) -> float:
    return rounded(trial.params[FIELD])
