"""The trials of a search over k, in Optuna's journal: sampled, judged while they are trained, and never forgotten.

The journal says which trials exist and how they ended; the folders say what they have reached. A journal that is gone
is rebuilt from the folders.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spatialgrad.studies.files import number, read_object, short, whole
from spatialgrad.studies.own.tune import FIELD, SEARCH, rounded
from spatialgrad.studies.run.journal import open_journal, quiet
from spatialgrad.studies.run.status import read_headline
from spatialgrad.train.config import TrainConfig, flatten
from spatialgrad.train.errors import DamagedFileError
from spatialgrad.train.jsonfiles import read_lines
from spatialgrad.train.run import CONFIG, METRICS

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

RANDOM_TRIALS = 5
"""Number of trials before the sampler and the pruner have enough to learn from."""
PATIENT_SHARE = 3
"""No trial is stopped before one epoch in so many is over."""
RUN = "run"
"""The attribute of a trial in the journal that names its folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A trial as the journal has it now."""

    number: int
    k: float
    folder: Path
    """Of its run."""
    running: bool
    """Whether it has not ended; if its process is gone, it was interrupted."""
    pruned: bool
    """Whether it was stopped early."""
    value: float | None
    """The headline metric as a share; None while it is running, and if it was stopped early or diverged."""


class Trials:
    """The trials of the search over k in a study's folder. One process at a time may use it.

    Args:
        folder: Of the study.
        config: The training; its own k is tried first.
        bounds: Smallest and largest k.
        metric: Name of the headline metric.
        prune: Whether hopeless trials are stopped early.
        report: Called with a line of text if the journal, or a trial that it is rebuilt from, is damaged.
    """

    def __init__(
        self,
        folder: Path,
        config: TrainConfig,
        bounds: tuple[float, float],
        *,
        metric: str,
        prune: bool,
        report: Callable[[str], None],
    ) -> None:
        from optuna.distributions import BaseDistribution, FloatDistribution

        self._folder, self._config, self._bounds, self._metric = folder, config, bounds, metric
        self._report = report
        self._distributions: dict[str, BaseDistribution] = {FIELD: FloatDistribution(*bounds, log=True)}
        self._storage, self._study = open_journal(folder, SEARCH, report)
        self._study.pruner = self._pruner(prune)
        self._recover()

    @property
    def all(self) -> list[Trial]:
        """All trials that have a k, in order; one whose command was killed before that is ignored."""
        return [self._described(trial) for trial in self._study.get_trials(deepcopy=False) if FIELD in trial.params]

    @property
    def running(self) -> list[Trial]:
        """Those that have not ended."""
        return [trial for trial in self.all if trial.running]

    @property
    def finished(self) -> list[Trial]:
        """Those that have ended, whether trained to the end, stopped early or diverged."""
        return [trial for trial in self.all if not trial.running]

    def get(self, number: int) -> Trial:
        """The trial with a number."""
        return self._described(self._get(number))

    def ask(self) -> Trial:
        """A new trial, whose k is chosen by the sampler."""
        from optuna.samplers import TPESampler

        number, own = len(self.all), self._config.scaling.k
        if number == 0 and self._bounds[0] <= own <= self._bounds[1]:
            self._study.enqueue_trial({FIELD: own}, skip_if_exists=True)
        # A sampler of its own for each trial: the state of one that is shared would be lost with this process.
        seed = int.from_bytes(hashlib.sha256(f"tune {number}".encode()).digest()[:4])
        self._study.sampler = TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS)
        with quiet():
            asked = self._study.ask(self._distributions)
        return self.get(asked.number)

    def note_folder(self, trial: Trial) -> None:
        """Record the folder of a trial."""
        if RUN not in self._get(trial.number).user_attrs:
            self._storage.set_trial_user_attr(self._id(trial.number), RUN, str(trial.folder.relative_to(self._folder)))

    def follow(self, number: int) -> tuple[int, float] | None:
        """Record what a trial has reached since the last call, and prune it if it is hopeless.

        Returns:
            If it was pruned by this call, the epoch, from 0, and its metric; its process is still to be stopped.
        """
        from optuna.trial import TrialState

        trial, last = self._get(number), self._config.budget.epochs - 1
        if trial.state.is_finished():
            return None
        for epoch, value in self._metrics(self._folder_of(trial)):
            if epoch in trial.intermediate_values:
                continue
            self._storage.set_trial_intermediate_value(self._id(number), epoch, value)
            if epoch < last and self._study.pruner.prune(self._study, self._get(number)):
                with quiet():
                    self._study.tell(number, state=TrialState.PRUNED)
                return epoch, value
        return None

    def complete(self, number: int, value: float) -> None:
        """Record the result of a trial that was trained to the end."""
        with quiet():
            self._study.tell(number, value)

    def fail(self, number: int) -> None:
        """Record that a trial diverged."""
        from optuna.trial import TrialState

        with quiet():
            self._study.tell(number, state=TrialState.FAIL)

    def _pruner(self, prune: bool) -> Any:
        from optuna.pruners import MedianPruner, NopPruner

        if not prune:
            return NopPruner()
        # Until the first scalings, all trials are the same training.
        patience = max(self._config.scaling.warmup + 1, self._config.budget.epochs // PATIENT_SHARE)
        return MedianPruner(n_startup_trials=RANDOM_TRIALS, n_warmup_steps=patience)

    def _recover(self) -> None:
        """Rebuild a journal that is gone from the folders of the trials."""
        from optuna.trial import TrialState, create_trial

        if self._study.get_trials(deepcopy=False):
            return
        for folder in sorted((self._folder / "searches" / SEARCH).glob(f"trial-*/seed{self._config.seed}")):
            try:
                k = float(flatten(read_object(folder / CONFIG))[FIELD])
                headline = read_headline(folder)
            except (DamagedFileError, FileNotFoundError, KeyError, TypeError, ValueError) as error:
                self._report(f"{folder} is left out of the rebuilt journal ({short(error)}).")
                continue
            self._study.add_trial(
                create_trial(
                    state=TrialState.RUNNING if headline is None else TrialState.COMPLETE,
                    value=None if headline is None else headline.value,
                    params={FIELD: k},
                    distributions=self._distributions,
                    user_attrs={RUN: str(folder.relative_to(self._folder))},
                    intermediate_values=dict(self._metrics(folder)) if headline is not None else {},
                )
            )

    def _metrics(self, folder: Path) -> list[tuple[int, float]]:
        """Epochs, from 0, and the held-out metric of each."""
        name = f"test_{self._metric}"
        try:
            lines = read_lines(folder / METRICS)
        except DamagedFileError:  # the run says so when it resumes
            return []
        found = [(whole(line, "epoch"), number(line, name)) for line in lines]
        return [(epoch, value) for epoch, value in found if epoch is not None and value is not None]

    def _described(self, trial: FrozenTrial) -> Trial:
        from optuna.trial import TrialState

        return Trial(
            number=trial.number,
            k=rounded(trial.params[FIELD]),
            folder=self._folder_of(trial),
            running=trial.state is TrialState.RUNNING,
            pruned=trial.state is TrialState.PRUNED,
            value=trial.value if trial.state is TrialState.COMPLETE else None,
        )

    def _folder_of(self, trial: FrozenTrial) -> Path:
        if place := trial.user_attrs.get(RUN):
            return self._folder / str(place)
        # By its number at first; in a journal that was rebuilt, another trial may have the folder of that number.
        taken = {each.user_attrs.get(RUN) for each in self._study.get_trials(deepcopy=False)}
        places = (f"searches/{SEARCH}/trial-{n:03d}/seed{self._config.seed}" for n in itertools.count(trial.number))
        return self._folder / next(place for place in places if place not in taken)

    def _get(self, number: int) -> FrozenTrial:
        return next(trial for trial in self._study.get_trials(deepcopy=False) if trial.number == number)

    def _id(self, number: int) -> int:
        study = self._storage.get_study_id_from_name(SEARCH)
        return int(self._storage.get_trial_id_from_study_id_trial_number(study, number))
