"""Read a study's folder: every arm with its runs, whatever state they are in.

A damaged run never raises. One that is waiting, running, stopped, failed or damaged has a state but no value.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spatialgrad.report.examples import read_examples
from spatialgrad.report.reading import read_mapping
from spatialgrad.report.results import ArmResults, Curve, PointResults, RunResults, SearchResults, StudyResults
from spatialgrad.report.scalings_log import ScalingsLog
from spatialgrad.studies.files import Complain, number, read_entries, short, whole
from spatialgrad.studies.identity import other_run, planned_values
from spatialgrad.studies.record import ArmRecord, RunRecord, SearchRecord, read_best, read_study
from spatialgrad.studies.run.status import run_status
from spatialgrad.train.errors import DamagedFileError
from spatialgrad.train.run import DISTANCES, ENVIRONMENT, METRICS, RESULT, SCALINGS, TIMINGS


def load_results(folder: Path | str) -> StudyResults:
    """Read a study's folder.

    Raises:
        ConfigError: If the folder holds no study.
    """
    folder = Path(folder)
    record = read_study(folder)
    planned = planned_values(folder, record)
    curves = (f"test_{record.metric}", f"train_{record.metric}")
    seen: dict[str, RunResults] = {}

    def runs(records: Sequence[RunRecord], metric: str | None = record.metric) -> tuple[RunResults, ...]:
        for each in records:
            if each.folder not in seen:
                seen[each.folder] = _read_run(folder, each, planned[each.folder], metric, curves)
        return tuple(seen[each.folder] for each in records)

    def metric_of(arm: ArmRecord) -> str | None:
        # A backbone has the metric of another task, and a distance is no share in per cent.
        return record.metric if arm.shown and record.metric != "distance" else None

    several = len({tuple(arm.group.values()) for arm in record.arms if arm.shown}) > 1

    def name_of(arm: ArmRecord) -> str:
        return " · ".join([*arm.group.values(), arm.label]) if several else arm.label

    def searched(search: SearchRecord) -> SearchResults:
        points = tuple(PointResults(record=point, runs=runs(point.runs)) for point in search.points)
        try:
            return SearchResults(record=search, points=points, chosen=read_best(folder, search.name))
        except DamagedFileError as error:
            return SearchResults(record=search, points=points, problem=str(error))

    arms = tuple(ArmResults(record=arm, name=name_of(arm), runs=runs(arm.runs, metric_of(arm))) for arm in record.arms)
    return StudyResults(folder=folder, record=record, arms=arms, searches=tuple(map(searched, record.searches)))


def _read_run(
    study: Path, record: RunRecord, planned: Mapping[str, Any], metric: str | None, curves: Sequence[str]
) -> RunResults:
    """Read a run.

    Args:
        study: The study's folder.
        record: The run.
        planned: The fields of its config that were planned.
        metric: The study's metric; None if the run has another one.
        curves: The metrics of each epoch that figures show; nothing else of an epoch is kept.
    """
    folder = study / record.folder
    run = RunResults(folder=folder, name=record.folder, seed=record.seed, state="waiting")
    try:
        if not folder.resolve().is_relative_to(study.resolve()):
            message = "study.json points outside the study's folder; not read"
            return replace(run, state="damaged", message=message)
        return _read_files(run, planned, metric, curves)
    except Exception as error:  # no run may stop a report, whatever its files hold
        return replace(run, state="damaged", message=f"the folder cannot be read ({short(error)})")


def _read_files(run: RunResults, planned: Mapping[str, Any], metric: str | None, curves: Sequence[str]) -> RunResults:
    folder, problems = run.folder, list[str]()
    result = read_mapping(folder / RESULT, problems.append) or {}
    broken = bool(problems)
    run = replace(
        run,
        result=result,
        environment=read_mapping(folder / ENVIRONMENT, problems.append) or {},
        curves=_read_curves(folder / METRICS, curves, problems.append),
        scalings=ScalingsLog(folder / SCALINGS),
        distances=list(read_entries(folder / DISTANCES, problems.append)),
        starts=[
            session
            for entry in read_entries(folder / TIMINGS, problems.append)
            if isinstance(session := entry.get("session"), str)
        ],
        examples=read_examples(folder, problems.append),
    )
    status = run_status(folder)
    state, message, value = status.state, status.message, None
    if state == "finished" and not broken:
        try:
            message = other_run(folder, planned)
        except DamagedFileError as error:
            message = str(error)
        value = run.metric(metric) if metric is not None else None
        if not message and metric is not None and value is None:
            message = f"{RESULT} has no {metric}"
        broken = bool(message)
    if broken or state == "damaged":
        found = tuple(dict.fromkeys(filter(None, (message, *problems))))
        return replace(run, state="damaged", message="; ".join(found), result={})
    rest = tuple(problem for problem in problems if problem not in message)
    return replace(
        run,
        state=state,
        epoch=status.epoch,
        epochs=status.epochs,
        message=message,
        value=value,
        other_problems=rest,
    )


def _read_curves(path: Path, names: Sequence[str], complain: Complain) -> dict[str, Curve]:
    curves: dict[str, Curve] = {name: (array("q"), array("d")) for name in names}
    for entry in read_entries(path, complain):
        epoch = whole(entry, "epoch")
        for name, (epochs, values) in curves.items():
            value = number(entry, name)
            if epoch is not None and value is not None:
                epochs.append(epoch + 1)
                values.append(100 * value)
    return curves
