"""Read a study: every arm with its runs, whatever state they are in.

A damaged run never raises. One that is waiting, running, interrupted, failed or damaged has a state but no value.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from spatialgrad.report.examples import read_examples
from spatialgrad.report.reading import Complain, number, read_entries, read_mapping, short, whole
from spatialgrad.report.results import ArmResults, Curve, PointResults, RunResults, SearchResults, StudyResults
from spatialgrad.report.scalings_log import ScalingsLog
from spatialgrad.studies.archive import open_study
from spatialgrad.studies.status import run_status
from spatialgrad.studies.study import Arm, RunRecord, Search
from spatialgrad.train.config import TrainConfig
from spatialgrad.train.run import DISTANCES, ENVIRONMENT, METRICS, RESULT, SCALINGS, TIMINGS, Run


def load_results(path: Path | str) -> StudyResults:
    """Read a study's folder, or an archived study.

    Raises:
        ConfigError: If there is no study.
    """
    study = open_study(Path(path))
    record, planned = study.record, study.record.planned_configs(study.choices)
    curves = (f"test_{record.metric}", f"train_{record.metric}")
    seen: dict[str, RunResults] = {}

    def runs(records: Sequence[RunRecord], metric: str | None = record.metric) -> tuple[RunResults, ...]:
        for each in records:
            if each.folder not in seen:
                seen[each.folder] = _read_run(
                    study.runs[each.folder],
                    study.path / each.folder,
                    each,
                    planned[each.folder],
                    metric,
                    curves,
                    archived=each.folder in study.archived,
                )
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
    return StudyResults(folder=study.path, record=record, arms=arms, searches=tuple(map(searched, record.searches)))


def _read_run(
    run: Run,
    folder: Path,
    record: RunRecord,
    planned: TrainConfig | None,
    metric: str | None,
    curves: Sequence[str],
    *,
    archived: bool,
) -> RunResults:
    """Read a run.

    Args:
        run: The run.
        folder: Where it is, or would be.
        record: Its record.
        planned: Its config as planned.
        metric: The study's metric; None if the run has another one.
        curves: The metrics of each epoch that figures show; nothing else of an epoch is kept.
        archived: Whether it is an archived run, which has no folder.
    """
    results = RunResults(folder=folder, name=record.folder, seed=record.seed, state="waiting")
    try:
        problems: list[str] = []
        filled = _archived(results, run, curves) if archived else _read_files(results, curves, problems.append)
        return _judged(filled, run, planned, metric, problems)
    except Exception as error:  # no run may stop a report, whatever its files hold
        return replace(results, state="damaged", message=f"the folder cannot be read ({short(error)})")


def _archived(results: RunResults, run: Run, curves: Sequence[str]) -> RunResults:
    return replace(
        results,
        result=msgspec.to_builtins(run.result) if run.result is not None else {},
        environment=run.environment,
        curves=_curves(run.metrics, curves),
        scalings=ScalingsLog(None, run.scalings),
        distances=run.distances,
        starts=[entry["session"] for entry in run.timings if "session" in entry],
    )


def _read_files(results: RunResults, curves: Sequence[str], complain: Complain) -> RunResults:
    folder = results.folder
    return replace(
        results,
        result=read_mapping(folder / RESULT, complain) or {},
        environment=read_mapping(folder / ENVIRONMENT, complain) or {},
        curves=_curves(read_entries(folder / METRICS, complain), curves),
        scalings=ScalingsLog(folder / SCALINGS),
        distances=list(read_entries(folder / DISTANCES, complain)),
        starts=[
            session
            for entry in read_entries(folder / TIMINGS, complain)
            if isinstance(session := entry.get("session"), str)
        ],
        examples=read_examples(folder, complain),
    )


def _judged(
    results: RunResults, run: Run, planned: TrainConfig | None, metric: str | None, problems: Sequence[str]
) -> RunResults:
    """The results with the state of the run and, if it has finished as planned, its value."""
    status = run_status(run, planned)
    message, value = status.message, None
    if status.state == "finished":
        value = results.metric(metric) if metric is not None else None
        if metric is not None and value is None:
            message = f"{RESULT} has no {metric}"
    if status.state == "damaged" or (status.state == "finished" and message):
        found = tuple(dict.fromkeys(filter(None, (message, *problems))))
        return replace(results, state="damaged", message="; ".join(found), result={})
    rest = tuple(problem for problem in problems if problem not in message)
    return replace(
        results,
        state=status.state,
        epoch=status.epoch,
        epochs=status.epochs,
        message=message,
        value=value,
        other_problems=rest,
    )


def _curves(entries: Iterable[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Curve]:
    curves: dict[str, Curve] = {name: (array("q"), array("d")) for name in names}
    for entry in entries:
        epoch = whole(entry, "epoch")
        for name, (epochs, values) in curves.items():
            value = number(entry, name)
            if epoch is not None and value is not None:
                epochs.append(epoch + 1)
                values.append(100 * value)
    return curves
