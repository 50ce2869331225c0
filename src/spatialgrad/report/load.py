"""Read the runs of a study, or a single one, in whatever state they are.

A run whose files are damaged, or which is not the planned one, has a state and a message that names the file, but no
value; it does not affect the others.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from spatialgrad.report.results import (
    ArmResults,
    Curve,
    PointResults,
    RunResults,
    SearchResults,
    StudyResults,
)
from spatialgrad.studies.archive import StudyOnDisk, is_archive, open_study
from spatialgrad.studies.record import STUDY
from spatialgrad.studies.status import run_status
from spatialgrad.studies.study import Arm, RunRecord, Search
from spatialgrad.train.config import TrainConfig
from spatialgrad.train.errors import ConfigError, DamagedFileError
from spatialgrad.train.jsonfiles import read_json
from spatialgrad.train.run import EXAMPLES, EXAMPLES_INDEX, RESULT, Run

Opener = Callable[[], Run]


def load_results(path: Path | str) -> StudyResults:
    """Read a study's folder, or an archived study.

    Raises:
        ConfigError: If there is no study.
        DamagedFileError: If an archive is damaged.
    """
    study = open_study(Path(path))
    record, planned = study.record, study.record.planned_configs(study.choices)
    seen: dict[str, RunResults] = {}

    def runs(records: Sequence[RunRecord], metric: str | None = record.metric) -> tuple[RunResults, ...]:
        for each in records:
            if each.folder not in seen:
                folder = None if each.folder in study.archived else study.path / each.folder
                opener = partial(_open_run, study, each.folder)
                run = read_run(opener, each, metric, curves=record.metric, planned=planned[each.folder], folder=folder)
                seen[each.folder] = run
        return tuple(seen[each.folder] for each in records)

    def metric_of(arm: Arm) -> str | None:
        # A backbone has the metric of another task, and a distance is no share in per cent.
        return record.metric if arm.shown and record.metric != "distance" else None

    several = len({tuple(arm.group.values()) for arm in record.arms if arm.shown}) > 1

    def searched(search: Search) -> SearchResults:
        points = tuple(PointResults(record=point, runs=runs(point.runs)) for point in search.points)
        chosen, problem = study.choices.get(search.name), study.problems.get(search.name, "")
        return SearchResults(record=search, points=points, chosen=chosen, problem=problem)

    arms = tuple(
        ArmResults(record=arm, name=arm.name if several else arm.label, runs=runs(arm.runs, metric_of(arm)))
        for arm in record.arms
    )
    searches = tuple(map(searched, record.searches))
    return StudyResults(folder=study.path, record=record, arms=arms, searches=searches, archived=is_archive(study.path))


def _open_run(study: StudyOnDisk, name: str) -> Run:
    if name in study.archived:
        return study.runs[name]
    if not (study.path / name).resolve().is_relative_to(study.path.resolve()):
        raise DamagedFileError(f"{STUDY} points outside the study's folder; not read")
    return Run.open(study.path / name)  # anew: what it has read is not kept


def read_run(
    opener: Opener,
    record: RunRecord,
    metric: str | None,
    *,
    curves: str,
    planned: TrainConfig | None = None,
    folder: Path | None = None,
) -> RunResults:
    """Read a run; nothing but an unexpected error is raised.

    Args:
        opener: Opens the run.
        record: Its name and seed.
        metric: The study's metric; None if the run has another one.
        curves: The metric of each epoch that figures show; nothing else of an epoch is kept.
        planned: The config that was planned; None if any run is right.
        folder: Of the run; None for an archived one.
    """
    unread = RunResults(name=record.folder, seed=record.seed, open=opener, folder=folder, state="damaged")
    try:
        run = opener()
        status = run_status(run, planned)
        if status.state == "damaged":
            raise DamagedFileError(status.message)
        results = replace(
            unread,
            state=status.state,
            epoch=status.epoch,
            epochs=status.epochs,
            message=status.message,
            result=run.result,
            **_contents(run, curves, folder),
        )
        value = results.metric(metric) if metric else None
        if run.result is not None and metric and value is None:
            raise DamagedFileError(f"{RESULT} has no {metric}")
        return replace(results, value=value)
    except (ConfigError, DamagedFileError) as error:
        return replace(unread, message=str(error).replace(f"{folder}/", ""))


def _contents(run: Run, metric: str, folder: Path | None) -> dict[str, Any]:
    """What the files of a run hold, apart from config and result."""
    index = None if folder is None else folder / EXAMPLES / EXAMPLES_INDEX
    return {
        "environment": run.environment,
        "curves": {name: _curve(run, name) for name in (f"test_{metric}", f"train_{metric}")},
        "has_scalings": bool(run.scalings),
        "has_dependence": any(each.get("dependence") for each in run.scalings),
        "distances": [entry for entry in run.distances if None not in entry.values()],  # null is not finite
        "starts": [entry["session"] for entry in run.timings if "session" in entry],
        "examples": read_json(index) if index is not None and index.exists() else None,
    }


def _curve(run: Run, name: str) -> Curve:
    points = [(entry["epoch"] + 1, 100 * entry[name]) for entry in run.metrics if entry.get(name) is not None]
    return array("q", [epoch for epoch, _ in points]), array("d", [value for _, value in points])
