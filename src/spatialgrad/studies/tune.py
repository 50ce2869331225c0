"""The choice of k for a user's own network and data set: a search with Optuna, and the best values trained again.

A search sees each k once, and the best of many single results is better than it will be the next time. The best few are
therefore trained again with further seeds, beside the k of the config, and only these runs are compared.

Optuna only samples and prunes. What was tried is in the folders of the trials, from which its study is rebuilt when a
command starts; a trial that was stopped early or diverged has a record of that in its folder, and one without any end
was interrupted and resumes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from spatialgrad.data.registry import find_source
from spatialgrad.studies.compare import described, measured_on
from spatialgrad.studies.console import StudyReporter, counted
from spatialgrad.studies.launch import OUTPUT, Ended
from spatialgrad.studies.plan import Job
from spatialgrad.studies.record import STUDY, StudyRecord, read_study
from spatialgrad.studies.registry import FailedRunsError
from spatialgrad.studies.status import format_metric, why_not_planned
from spatialgrad.studies.study import Arm, FigureName, Point, RunRecord, Search, Study
from spatialgrad.train.config import TrainConfig
from spatialgrad.train.console import duration
from spatialgrad.train.errors import (
    ConfigError,
    DamagedFileError,
    DivergedError,
    FolderInUseError,
    OtherConfigError,
)
from spatialgrad.train.flags import flag
from spatialgrad.train.identity import Identity, explain_difference
from spatialgrad.train.jsonfiles import read_json
from spatialgrad.train.run import FAILURE, RESULT, Run

if TYPE_CHECKING:
    import optuna

TUNE, SEARCH, FIELD = "tune", "k", "scaling.k"
FIRST_SEED = 1
"""Seed of the first run that repeats a k; trials have seed 0."""
FINALISTS = 3
"""Number of searched values that are trained again."""
APART = 1.25
"""Smallest factor between two of them: closer ones give nearly the same scalings."""
RANDOM_TRIALS = 5
"""Number of trials before the sampler and the pruner have enough to learn from."""
PATIENT_SHARE = 3
"""No trial is stopped before one epoch in so many is over."""
PRUNED = 0
"""Exit code that is recorded for a trial that was stopped early."""
TUNE_LOCK = "tune.lock"
State = Literal["running", "finished", "pruned", "diverged"]
ENDS: dict[object, State] = {PRUNED: "pruned", DivergedError.exit_code: "diverged"}
"""What has become of a trial without a result, by the exit code that is recorded."""
FIGURES: tuple[FigureName, ...] = ("gains", "learning-curves", "overhead", "scalings")


def check_bounds(bounds: tuple[float, float]) -> None:
    """Raise unless k can be searched between two numbers.

    Raises:
        ConfigError: If they are not positive, or not in ascending order.
    """
    low, high = bounds
    if not (0 < low < high < math.inf):
        raise ConfigError(f"--k must be two positive numbers, the smaller one first, got {low:g} {high:g}")


def check_config(config: TrainConfig) -> None:
    """Raise unless a training can be used to choose k.

    Raises:
        ConfigError: If it would be judged by the test images, or its scalings would never be measured.
    """
    if not config.data.validation:
        raise ConfigError("--data.validation must be above 0: k is chosen on held-out training images, got 0.0")
    if config.scaling.warmup >= config.budget.epochs:
        raise ConfigError(
            f"--epochs must be greater than --scaling.warmup {config.scaling.warmup}, got {config.budget.epochs}: "
            "scalings would never be measured"
        )


def with_k(config: TrainConfig, k: float) -> TrainConfig:
    """A training with another k."""
    return replace(config, scaling=replace(config.scaling, k=k))


def rounded(k: float) -> float:
    """A searched k with three digits; more make no difference."""
    return float(f"{k:.3g}")


def finalists(values: Mapping[float, float], reference: float, number: int = FINALISTS) -> list[float]:
    """The values of k that are trained again beside the reference, the best first.

    Args:
        values: The metric of each k that was searched to the end.
        reference: A k that is trained again in any case.
        number: Largest number of values.
    """
    ranked = sorted((k for k in values if k != reference), key=lambda k: (-values[k], k))
    chosen: list[float] = []
    for k in ranked:
        if len(chosen) < number and all(_factor(k, other) >= APART for other in (*chosen, reference)):
            chosen.append(k)
    # In a narrow range, all values may be close to the reference.
    return chosen or ranked[:1]


def tune_study(config: TrainConfig, ks: Sequence[float]) -> Study:
    """The study that trains values of k again.

    Args:
        config: The training; its own k is the reference.
        ks: The other values.
    """
    reference = config.scaling.k
    every = sorted({reference, *ks})
    arms = tuple(Arm(group={}, label=label(k), config=with_k(config, k), reference=k == reference) for k in every)
    return Study(
        name=TUNE,
        title=f"k for {described(config)}",
        shows="A search of your own",
        question="Which k is best here, and does it matter?",
        arms=lambda scale: arms,
        figures=FIGURES,
        metric=find_source(config.data.name).metric,
        num_seeds={"own": 3},
        differences={
            "own": f"{measured_on(config)} The table compares runs with further seeds, which the search did not see."
        },
    )


def label(k: float) -> str:
    """The name of a k in tables."""
    return f"k = {k:.12g}"


def first_record(config: TrainConfig, bounds: tuple[float, float], command: str) -> StudyRecord:
    """The record of a search that has not begun."""
    search = Search(name=SEARCH, config=config, grid={FIELD: bounds})
    return StudyRecord.of(tune_study(config, ()), "own", seeds=(), searches=(search,), command=command)


def search_in(record: StudyRecord) -> Search:
    """The search of a record.

    Raises:
        OtherConfigError: If it has none.
    """
    for search in record.searches:
        if record.name == TUNE and search.name == SEARCH:
            return search
    raise OtherConfigError("the folder holds another study. Choose another folder with --out.")


def ks_of(record: StudyRecord) -> list[float]:
    """The values of k that a record has trained again, the reference included."""
    return [arm.config.scaling.k for arm in record.arms]


def check_same_search(record: StudyRecord, config: TrainConfig, bounds: tuple[float, float]) -> None:
    """Raise unless a folder's search is the one that is asked for.

    Raises:
        OtherConfigError: If it is another one; the message lists the differences.
    """
    search = search_in(record)
    changed = {flag(name): pair for name, pair in explain_difference(Identity(search.config), Identity(config)).items()}
    there = search.grid[FIELD]
    if tuple(there) != bounds:
        changed["--k"] = (" ".join(f"{end:g}" for end in there), " ".join(f"{end:g}" for end in bounds))
    if changed:
        lines = [f"  {name}: {before!r} there, {now!r} now" for name, (before, now) in changed.items()]
        message = "the folder holds a search with other settings:"
        raise OtherConfigError("\n".join([message, *lines, "Choose another folder with --out."]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A trial as its folder has it."""

    number: int
    k: float
    folder: Path
    """Of its run."""
    state: State
    """One that is running while its process is gone was interrupted."""
    value: float | None = None
    """The headline metric as a share; None unless it was trained to the end."""


class TrialJobs:
    """The trials of a search over k, as a source of jobs; the caller holds `TUNE_LOCK` of the folder.

    Args:
        folder: Of the study.
        config: The training; its own k is tried first.
        bounds: Smallest and largest k.
        num_trials: Number of trials; those of earlier commands count.
        reporter: Reports progress.
        prune: Whether hopeless trials are stopped early.
        command: The command that repeats the search.

    Raises:
        OtherConfigError: If the folder holds another search, or another study.
    """

    def __init__(
        self,
        folder: Path,
        config: TrainConfig,
        bounds: tuple[float, float],
        num_trials: int,
        reporter: StudyReporter,
        *,
        prune: bool = True,
        command: str = "",
    ) -> None:
        self.folder, self.config, self.bounds, self.num_trials = folder, config, bounds, num_trials
        self.reporter, self._prune = reporter, prune
        self._record = self._read_record(command)
        self._running: dict[Path, Job] = {}
        self._judged: dict[Path, int] = {}
        self._awaited: set[Path] = set()
        self._trials: list[Trial] = []
        # The numbers have no gap, because each trial is prepared before the next one.
        while (trial := self._read(len(self._trials))) is not None:
            self._trials.append(trial)
        self._write_record()

    @property
    def trials(self) -> list[Trial]:
        """The trials that have ended, in the order in which they were begun."""
        return [trial for trial in self._trials if trial.state != "running"]

    def next(self) -> Job | None:
        """An interrupted trial or, if there is none, a new one."""
        interrupted = [each for each in self._trials if each.state == "running" and each.folder not in self._running]
        for folder in (trial.folder for trial in interrupted if Run.open(trial.folder).is_running):
            # The process of a command that was killed saves and ends; new trials would learn nothing from it.
            if folder not in self._awaited:
                self.reporter.message(f"Waiting for the process that is saving in {folder}.")
            self._awaited.add(folder)
            return None
        if not interrupted and len(self._trials) >= self.num_trials:
            return None
        number = interrupted[0].number if interrupted else len(self._trials)
        k = interrupted[0].k if interrupted else self._sample(number)
        job = Job(folder=self._folder_of(number), config=with_k(self.config, k), title=label(k))
        Run.open(job.folder).plan(replace(job.config, out=job.folder))
        self._refresh(number)
        self._running[job.folder] = job
        return job

    def note(self, job: Job, ended: Ended) -> None:
        """Record the end of a process.

        Raises:
            FailedRunsError: If it failed for another reason than its k.
            OtherConfigError: If the folder holds the result of another run.
        """
        del self._running[job.folder]
        number = next(trial.number for trial in self._trials if trial.folder == job.folder)
        if self._trials[number].state == "pruned":
            return
        if ended.exit_code == DivergedError.exit_code:
            Run.open(job.folder).record_failure(ended.message, ended.exit_code)
            self.reporter.ended(job, "diverged")
        trial = self._refresh(number)
        if trial.state == "finished" and (result := Run.open(job.folder).result) is not None:
            self.reporter.ended(job, f"{format_metric(result.metric, result.value)} in {duration(result.seconds)}")
        elif trial.state == "running" and ended.exit_code != FolderInUseError.exit_code:
            raise FailedRunsError(
                f"the trial in {job.folder} failed: {ended.message}\nThe full output is in its {OUTPUT}. Run the same "
                "command again to retry it; finished trials are kept."
            )

    def look(self) -> Iterator[Path]:
        """Judge the running trials; returns those that are hopeless."""
        for trial in [each for each in self._trials if each.folder in self._running and each.state == "running"]:
            if not Run.open(trial.folder).is_finished and (metrics := self._hopeless(trial)) is not None:
                epoch, value = metrics[-1]
                when = f"epoch {epoch + 1} of {self.config.budget.epochs}"
                what = f"stopped after {when} ({format_metric(self._record.metric, value)})"
                # Recorded before the process is stopped, so that no command resumes it.
                Run.open(trial.folder).record_failure(what, PRUNED)
                self._refresh(trial.number)
                self.reporter.ended(self._running[trial.folder], what)
                yield trial.folder

    @property
    def is_done(self) -> bool:
        """Whether there are as many trials as wanted, and all have ended."""
        return len(self.trials) >= self.num_trials and len(self.trials) == len(self._trials)

    def describe_rest(self) -> str:
        """How many have ended."""
        total = counted(self.num_trials, "trial")
        return f"stopped with {len(self.trials)} of {total} finished; the running ones have saved."

    def close(self) -> None:
        """Nothing is held."""

    def _read_record(self, command: str) -> StudyRecord:
        if not (self.folder / STUDY).exists():
            return first_record(self.config, self.bounds, command)
        before = read_study(self.folder)
        try:
            check_same_search(before, self.config, self.bounds)
        except OtherConfigError as error:
            raise OtherConfigError(f"{self.folder}: {error}") from error
        return replace(before, command=command)

    def _write_record(self) -> None:
        """List the trials in the study's record, except those without a result: stopped early or diverged."""
        listed = [trial for trial in self._trials if trial.state in ("running", "finished")]
        points = tuple(
            Point(
                values={FIELD: trial.k},
                runs=(RunRecord(folder=str(trial.folder.relative_to(self.folder)), seed=self.config.seed),),
            )
            for trial in sorted(listed, key=lambda trial: trial.k)
        )
        self._record = replace(self._record, searches=(replace(search_in(self._record), points=points),))
        self._record.write(self.folder)

    def _folder_of(self, number: int) -> Path:
        return self.folder / "searches" / SEARCH / f"trial-{number:03d}" / f"seed{self.config.seed}"

    def _read(self, number: int) -> Trial | None:
        """A trial as its folder has it now; None if it has not begun."""
        run = Run.open(self._folder_of(number))
        if not run.exists:
            return None
        k, value = run.config.scaling.k, None
        state: State = "running"
        if run.is_finished:
            state, value = "finished", self._value(run, k)
        elif (run.folder / FAILURE).exists():
            state = ENDS.get(read_json(run.folder / FAILURE).get("exit_code"), "running")  # others are tried again
        return Trial(number=number, k=k, folder=run.folder, state=state, value=value)

    def _refresh(self, number: int) -> Trial:
        """Read a trial again after its folder has changed, and list it in the record."""
        trial = self._read(number)
        assert trial is not None
        self._trials[number : number + 1] = [trial]
        self._write_record()
        return trial

    def _value(self, run: Run, k: float) -> float:
        try:
            problem = why_not_planned(run, with_k(self.config, k))
            result = run.result
        except DamagedFileError as error:
            raise DamagedFileError(
                f"{error}. Restore the file, or delete {RESULT} to finish the trial again."
            ) from error
        if problem or result is None:
            raise OtherConfigError(f"{run.name}: {problem}. Move the folder away to train the trial again.")
        return result.value

    def _metrics(self, folder: Path) -> list[tuple[int, float]]:
        """Epochs, from 0, and the held-out metric of each."""
        name = f"test_{self._record.metric}"
        try:
            lines = Run.open(folder).metrics
        except DamagedFileError:  # the run says so when it resumes
            return []
        return [(int(line["epoch"]), float(line[name])) for line in lines if line.get(name) is not None]

    def _sample(self, number: int) -> float:
        """The k of a new trial: the config's own first, then what the sampler chooses."""
        from optuna.samplers import TPESampler

        (low, high), own = self.bounds, self.config.scaling.k
        if number == 0 and low <= own <= high:
            return own
        # A sampler of its own for each trial: the state of one that is shared would be lost with this process.
        seed = int.from_bytes(hashlib.sha256(f"tune {number}".encode()).digest()[:4])
        study = self._as_optuna(TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS))
        with quiet():
            return min(max(rounded(study.ask(self._distributions()).params[FIELD]), low), high)

    def _hopeless(self, trial: Trial) -> list[tuple[int, float]] | None:
        """The metrics up to the epoch after which a trial has fallen behind the others; None if it has not."""
        metrics, last = self._metrics(trial.folder), self.config.budget.epochs - 1
        judged = self._judged.get(trial.folder, 0)
        self._judged[trial.folder] = len(metrics)
        if not self._prune or judged == len(metrics):
            return None
        from optuna.pruners import MedianPruner

        # Until the first scalings, all trials are the same training.
        patience = max(self.config.scaling.warmup + 1, self.config.budget.epochs // PATIENT_SHARE)
        pruner = MedianPruner(n_startup_trials=RANDOM_TRIALS, n_warmup_steps=patience)
        study = self._as_optuna()
        for length in range(judged + 1, len(metrics) + 1):
            so_far = metrics[:length]
            if so_far[-1][0] < last and pruner.prune(study, self._frozen(trial, dict(so_far))):
                return so_far
        return None

    def _as_optuna(self, sampler: optuna.samplers.BaseSampler | None = None) -> optuna.Study:
        """Optuna's study of these trials, in memory."""
        import optuna

        with quiet():
            study = optuna.create_study(direction="maximize", sampler=sampler)
        for trial in self._trials:
            metrics = {} if trial.state == "running" else dict(self._metrics(trial.folder))
            study.add_trial(self._frozen(trial, metrics))
        return study

    def _frozen(self, trial: Trial, metrics: dict[int, float]) -> optuna.trial.FrozenTrial:
        from optuna.trial import TrialState, create_trial

        states = {"running": "RUNNING", "finished": "COMPLETE", "pruned": "PRUNED", "diverged": "FAIL"}
        return create_trial(
            state=TrialState[states[trial.state]],
            value=trial.value,
            params={FIELD: trial.k},
            distributions=self._distributions(),
            intermediate_values=metrics,
        )

    def _distributions(self) -> dict[str, Any]:
        from optuna.distributions import FloatDistribution

        return {FIELD: FloatDistribution(*self.bounds, log=True)}


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Optuna's messages about every study and trial, but not its warnings."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _factor(one: float, other: float) -> float:
    return max(one, other) / min(one, other)
