"""A study's results as plain values: every arm and search with its runs."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from spatialgrad.report.examples import Examples
from spatialgrad.report.reading import number
from spatialgrad.report.scalings_log import ScalingsLog
from spatialgrad.studies.record import StudyRecord
from spatialgrad.studies.status import State
from spatialgrad.studies.study import Arm, Point, Search
from spatialgrad.train.result import PHASES

Curve: TypeAlias = tuple["array[int]", "array[float]"]
"""Epochs (from 1) and values in per cent; arrays, as a study has very many of them."""


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
    other_problems: tuple[str, ...] = ()
    """Other files that could not be read; see `problems`."""
    value: float | None = None
    """The study's metric in per cent; None until the run has finished."""
    result: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    """The study's metric on training and test images, by its name in a line of metrics."""
    scalings: ScalingsLog = field(default_factory=lambda: ScalingsLog(None))
    """Read when they are needed."""
    distances: Sequence[Mapping[str, Any]] = ()
    starts: Sequence[str] = ()
    """Times at which the run was started or resumed."""
    examples: Examples | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """Files that could not be read, as far as they were needed."""
        return (*self.other_problems, *self.scalings.problems)

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

    record: Arm
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

    record: Point
    runs: tuple[RunResults, ...]

    @property
    def value(self) -> float | None:
        """Mean of its runs in per cent; None until all have finished."""
        values = [run.value for run in self.runs if run.value is not None]
        return sum(values) / len(values) if values and len(values) == len(self.runs) else None


@dataclass(frozen=True, kw_only=True)
class SearchResults:
    """A search and its points."""

    record: Search
    points: tuple[PointResults, ...]
    chosen: Mapping[str, Any] | None = None
    """The values that tune arms; None until they are chosen."""
    problem: str = ""
    """Why the choice cannot be read."""

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
