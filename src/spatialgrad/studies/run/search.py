"""A search in Optuna's journal: every point of the grid is a trial, trained in a run's folder.

Commands that share a study share only the journal and the folders. A trial that is running while no process holds its
folder was abandoned: whoever locks the folder takes over the trial, and the training resumes from its checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spatialgrad.studies.record import PointRecord, SearchRecord, best_file, read_best
from spatialgrad.studies.run.journal import open_journal, quiet, unless_told
from spatialgrad.studies.run.status import read_headline
from spatialgrad.train.errors import DamagedFileError
from spatialgrad.train.jsonfiles import write_json
from spatialgrad.train.run import RESULT

if TYPE_CHECKING:
    import optuna

DAMAGED_BEST = "best.damaged.json"


class GridSearch:
    """One search of a study.

    Args:
        folder: The study's folder.
        record: The search.
        report: Called with a line of text if something is wrong.
    """

    def __init__(self, folder: Path, record: SearchRecord, report: Callable[[str], None] = print) -> None:
        self.folder, self.record, self._report = folder, record, report
        self._storage, self._study = open_journal(folder, record.name, report)
        self._ended: set[int] = set()
        self._enqueue()

    def runs_of(self, point: int) -> list[Path]:
        """The run folders of a point."""
        return [self.folder / run.folder for run in self.record.points[point].runs]

    def begin(self, run: Path) -> None:
        """Mark the trial of a run as running, if it belongs to this search; the caller holds the run's folder."""
        for number in range(len(self.record.points)):
            if run in self.runs_of(number):
                self._set_running(number)

    def settle(self, failed: Collection[Path] = ()) -> None:
        """Tell Optuna which trials have ended.

        Args:
            failed: Folders of runs that failed and are not tried again by this command.
        """
        from optuna.trial import TrialState

        for number, point in enumerate(self.record.points):
            if number in self._ended:
                continue
            runs = self.runs_of(number)
            has_failed = any(run in failed for run in runs)
            value = None if has_failed else point_value(self.folder, point)
            if value is None and not (has_failed and all(run in failed or (run / RESULT).exists() for run in runs)):
                continue
            trial = self._newest(number)
            if not trial.state.is_finished():
                self._set_running(number)
                state = TrialState.COMPLETE if value is not None else TrialState.FAIL
                with quiet(), unless_told():
                    self._study.tell(trial.number, value, state=state, skip_if_finished=True)
            self._ended.add(number)

    @property
    def is_complete(self) -> bool:
        """Whether every point has ended."""
        return len(self._ended) == len(self.record.points)

    def best(self) -> Mapping[str, Any] | None:
        """The values of the best point of a complete search; None if every point has failed.

        The choice is final, even when failed points are tried again later: arms may already be trained with it.
        """
        path = best_file(self.folder, self.record.name)
        try:
            chosen = read_best(self.folder, self.record.name)
        except DamagedFileError as error:
            path.replace(path.with_name(DAMAGED_BEST))
            self._report(f"{path.parent}: {error}; it is kept as {DAMAGED_BEST}, and the best point is chosen again.")
            chosen = None
        if chosen is None:
            from optuna.trial import TrialState

            complete = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            if not complete:
                return None
            # Of several equally good points the first of the grid; the order in which they ended is random.
            best = max(complete, key=lambda trial: (trial.value, -trial.user_attrs["point"]))
            path.parent.mkdir(parents=True, exist_ok=True)
            point = self.record.points[best.user_attrs["point"]]
            num_points, num_failed = len(self.record.points), len(self.record.points) - len(complete)
            chosen = dict(point.values)
            outcome = {"value": best.value, "trial": best.number, "points": num_points, "failed": num_failed}
            write_json(path, {"values": chosen, **outcome})
        return chosen

    def _enqueue(self) -> None:
        """Add a waiting trial for every point without one, or whose last trial failed."""
        from optuna.distributions import BaseDistribution, CategoricalDistribution
        from optuna.trial import TrialState, create_trial

        fields = self.record.fields
        choices = {name: sorted({point.values[name] for point in self.record.points}) for name in fields}
        distributions: dict[str, BaseDistribution] = {name: CategoricalDistribution(choices[name]) for name in fields}
        there = {
            trial.user_attrs["point"]
            for trial in self._study.get_trials(deepcopy=False)
            if trial.state is not TrialState.FAIL
        }
        for number, point in enumerate(self.record.points):
            if number not in there:
                self._study.add_trial(
                    create_trial(
                        state=TrialState.WAITING,
                        params=dict(point.values),
                        distributions=distributions,
                        user_attrs={"point": number, "runs": [run.folder for run in point.runs]},
                    )
                )

    def _newest(self, point: int) -> optuna.trial.FrozenTrial:
        trials = [trial for trial in self._study.get_trials(deepcopy=False) if trial.user_attrs["point"] == point]
        return trials[-1]

    def _set_running(self, point: int) -> None:
        from optuna.trial import TrialState

        trial = self._newest(point)
        if trial.state is TrialState.WAITING:
            study_id = self._storage.get_study_id_from_name(self.record.name)
            trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
            with unless_told():
                self._storage.set_trial_state_values(trial_id, TrialState.RUNNING)


def point_value(folder: Path, point: PointRecord) -> float | None:
    """The mean headline metric of a point's runs, or None until all have finished with a readable result.

    Args:
        folder: The study's folder.
        point: A point of one of its searches.
    """
    try:
        headlines = [read_headline(folder / run.folder) for run in point.runs]
    except DamagedFileError:  # the run is reported as failed
        return None
    values = [headline.value for headline in headlines if headline is not None]
    return sum(values) / len(values) if len(values) == len(headlines) else None
