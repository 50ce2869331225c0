"""A study's folder as plain values: every arm with its runs, whatever state they are in.

A damaged run never raises. One that is waiting, running, stopped, failed or damaged has a state but no value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from spatialgrad.report.examples import Examples, read_examples
from spatialgrad.report.reading import Complain, matrix, number, read_best, read_entries, read_mapping
from spatialgrad.studies.record import ArmRecord, PointRecord, RunRecord, SearchRecord, StudyRecord, read_study
from spatialgrad.studies.run.status import FAILURE, State, run_status
from spatialgrad.train.runs.folder import CONFIG, DISTANCES, ENVIRONMENT, METRICS, RESULT, SCALINGS, TIMINGS
from spatialgrad.train.runs.timings import PHASES

Matrix: TypeAlias = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Scalings:
    """G of every layer at one update, and the S that it was made from."""

    epoch: int
    layers: Mapping[str, Matrix]
    dependence: Mapping[str, Matrix] = field(default_factory=dict)
    """S by layer, where it was measured."""


@dataclass(frozen=True, kw_only=True)
class RunResults:
    """One run: its state, and what it has written so far."""

    folder: Path
    name: str
    """The folder, relative to the study's."""
    seed: int
    state: State
    epoch: int = 0
    epochs: int | None = None
    message: str = ""
    """Why it failed, or which file is damaged."""
    problems: tuple[str, ...] = ()
    """Other files that could not be read."""
    value: float | None = None
    """The study's metric in per cent; None until the run has finished."""
    result: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[Mapping[str, Any]] = ()
    """One entry per epoch."""
    scalings: Sequence[Scalings] = ()
    distances: Sequence[Mapping[str, Any]] = ()
    starts: Sequence[str] = ()
    """Times at which the run was started or resumed."""
    examples: Examples | None = None

    def quantity(self, name: str) -> float | None:
        """A number of the result, or None."""
        return number(self.result, name)

    def metric(self, name: str) -> float | None:
        """A metric of the result in per cent."""
        test = self.result.get("test")
        value = (
            number(self.result, name) if name in self.result else number(test if isinstance(test, dict) else {}, name)
        )
        return None if value is None else 100 * value

    @property
    def seconds(self) -> Mapping[str, float] | None:
        """Seconds of each phase; None until the run has finished."""
        phases = {phase: self.quantity(f"{phase}_seconds") for phase in PHASES}
        known = {phase: seconds for phase, seconds in phases.items() if seconds is not None}
        return known if len(known) == len(PHASES) else None


@dataclass(frozen=True, kw_only=True)
class ArmResults:
    """An arm and its runs."""

    record: ArmRecord
    name: str
    """The label, preceded by the group if the study has several."""
    runs: tuple[RunResults, ...]

    @property
    def label(self) -> str:
        """What distinguishes the arm."""
        return self.record.label

    @property
    def group(self) -> tuple[str, ...]:
        """What it has in common with the arms it is compared with."""
        return tuple(self.record.group.values())

    @property
    def values(self) -> dict[int, float]:
        """The study's metric in per cent, by seed, of the finished runs."""
        return {run.seed: run.value for run in self.runs if run.value is not None}

    def quantities(self, name: str) -> list[float]:
        """A number of the results, for all runs that have it."""
        return [value for run in self.runs if (value := run.quantity(name)) is not None]

    def mean(self, name: str) -> float | None:
        """The mean of a number of the results."""
        values = self.quantities(name)
        return sum(values) / len(values) if values else None

    @property
    def newest(self) -> RunResults | None:
        """The first finished run, or the one that has progressed furthest."""
        return max(self.runs, key=lambda run: (run.state == "finished", run.epoch), default=None)


@dataclass(frozen=True, kw_only=True)
class PointResults:
    """A point of a search."""

    record: PointRecord
    runs: tuple[RunResults, ...]

    @property
    def value(self) -> float | None:
        """Mean of its runs in per cent; None until all have finished."""
        values = [run.value for run in self.runs if run.value is not None]
        return sum(values) / len(values) if values and len(values) == len(self.runs) else None


@dataclass(frozen=True, kw_only=True)
class SearchResults:
    """A search and its points."""

    record: SearchRecord
    points: tuple[PointResults, ...]
    chosen: Mapping[str, Any] | None = None
    """The values that tune arms; None until they are chosen."""

    @property
    def best(self) -> PointResults | None:
        """The chosen point; until there is one, the first of those with the largest mean."""
        known = [point for point in self.points if point.value is not None]
        known = [point for point in known if point.record.values == self.chosen] or known
        return max(known, key=lambda point: point.value or 0.0, default=None)

    @property
    def seconds(self) -> float:
        """Total time of all its runs."""
        return sum(run.quantity("seconds") or 0.0 for point in self.points for run in point.runs)


@dataclass(frozen=True, kw_only=True)
class StudyResults:
    """A study with all its runs."""

    folder: Path
    record: StudyRecord
    arms: tuple[ArmResults, ...]
    searches: tuple[SearchResults, ...]

    @property
    def shown(self) -> tuple[ArmResults, ...]:
        """The arms shown in the table."""
        return tuple(arm for arm in self.arms if arm.record.shown)

    @property
    def groups(self) -> dict[tuple[str, ...], tuple[ArmResults, ...]]:
        """The arms shown in the table, by group, in the study's order."""
        groups: dict[tuple[str, ...], tuple[ArmResults, ...]] = {}
        for arm in self.shown:
            groups[arm.group] = (*groups.get(arm.group, ()), arm)
        return groups

    @cached_property
    def runs(self) -> tuple[RunResults, ...]:
        """Every run once, even where arms share it."""
        points = [point for search in self.searches for point in search.points]
        owners: list[ArmResults | PointResults] = [*self.arms, *points]
        return tuple({run.name: run for owner in owners for run in owner.runs}.values())

    @property
    def states(self) -> Counter[str]:
        """Number of runs in each state."""
        return Counter(run.state for run in self.runs)

    def reference(self, arm: ArmResults) -> ArmResults | None:
        """The arm that an arm is compared with; None for the reference itself."""
        found = next((other for other in self.groups.get(arm.group, ()) if other.record.reference), None)
        return None if found is arm else found

    def seconds(self, arm: ArmResults) -> float | None:
        """Mean time of an arm's runs, plus the time of the search or the run that they start from, if it counts."""
        mean = arm.mean("seconds")
        if mean is not None and arm.record.pays_for_backbone:
            mean += sum(other.mean("seconds") or 0.0 for other in self.arms if other.record.key == arm.record.backbone)
        if mean is None or arm.record.tuned_by is None:
            return mean
        return mean + sum(search.seconds for search in self.searches if search.record.name == arm.record.tuned_by)


def load_results(folder: Path | str) -> StudyResults:
    """Read a study's folder.

    Raises:
        ConfigError: If the folder holds no study.
    """
    folder = Path(folder)
    record = read_study(folder)
    seen: dict[str, RunResults] = {}

    def runs(records: Sequence[RunRecord], metric: str | None = record.metric) -> tuple[RunResults, ...]:
        for each in records:
            if each.folder not in seen:
                seen[each.folder] = _read_run(folder, each, metric)
        return tuple(seen[each.folder] for each in records)

    def metric_of(arm: ArmRecord) -> str | None:
        # A backbone has the metric of another task, and a distance is no share in per cent.
        return record.metric if arm.shown and record.metric != "distance" else None

    several = len({tuple(arm.group.values()) for arm in record.arms if arm.shown}) > 1

    def name_of(arm: ArmRecord) -> str:
        return " · ".join([*arm.group.values(), arm.label]) if several else arm.label

    arms = tuple(ArmResults(record=arm, name=name_of(arm), runs=runs(arm.runs, metric_of(arm))) for arm in record.arms)
    searches = tuple(
        SearchResults(
            record=search,
            points=tuple(PointResults(record=point, runs=runs(point.runs)) for point in search.points),
            chosen=read_best(folder, search.name),
        )
        for search in record.searches
    )
    return StudyResults(folder=folder, record=record, arms=arms, searches=searches)


def _read_run(study: Path, record: RunRecord, metric: str | None) -> RunResults:
    folder = study / record.folder
    if not folder.resolve().is_relative_to(study.resolve()):
        return RunResults(
            folder=folder,
            name=record.folder,
            seed=record.seed,
            state="damaged",
            message="study.json points outside the study's folder; not read",
        )
    problems: list[str] = []
    result = read_mapping(folder / RESULT, problems.append) or {}
    broken = bool(problems)
    environment = read_mapping(folder / ENVIRONMENT, problems.append) or {}
    metrics = read_entries(folder / METRICS, problems.append)
    timings = read_entries(folder / TIMINGS, problems.append)
    run = RunResults(
        folder=folder,
        name=record.folder,
        seed=record.seed,
        state="waiting",
        result=result,
        environment=environment,
        metrics=metrics,
        scalings=_read_scalings(folder, problems.append),
        distances=read_entries(folder / DISTANCES, problems.append),
        starts=[str(each["session"]) for each in timings if "session" in each],
        examples=read_examples(folder, problems.append),
    )
    known: dict[str, Any] = {}
    try:
        status = run_status(folder)
        known |= {"state": status.state, "epoch": status.epoch, "epochs": status.epochs, "message": status.message}
    except Exception as error:  # whatever a damaged file raises
        for name in (CONFIG, FAILURE):
            read_mapping(folder / name, problems.append)
        broken = True
        problems = problems or [f"the state cannot be read ({type(error).__name__}: {error})"]
    if known.get("state") == "finished" and metric is not None and not broken:
        known["value"] = run.metric(metric)
        if known["value"] is None:
            broken = True
            problems.append(f"{RESULT} has no {metric}")
    if broken:
        known |= {"state": "damaged", "message": "; ".join(problems), "value": None, "result": {}}
        problems = []
    return replace(run, problems=tuple(problems), **known)


def _read_scalings(folder: Path, complain: Complain) -> tuple[Scalings, ...]:
    updates: list[Scalings] = []
    unreadable: set[str] = set()
    for entry in read_entries(folder / SCALINGS, complain):
        found: dict[str, Matrix] = {}
        measured: dict[str, Matrix] = {}
        for kind, readable in (("scalings", found), ("dependence", measured)):
            values = entry.get(kind)
            for name, each in values.items() if isinstance(values, dict) else ():
                if (parsed := matrix(each)) is None:
                    unreadable.add(name)
                else:
                    readable[name] = parsed
        if found:
            updates.append(Scalings(epoch=int(number(entry, "epoch") or 0), layers=found, dependence=measured))
    if unreadable:
        complain(f"{SCALINGS} has no matrix for {', '.join(sorted(unreadable)[:3])}")
    return tuple(updates)
