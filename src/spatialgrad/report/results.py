"""A study's results as plain values: every arm and search with its runs."""

from __future__ import annotations

import statistics
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from spatialgrad.report.statistics import Summary, summarize
from spatialgrad.studies.record import StudyRecord
from spatialgrad.studies.status import State
from spatialgrad.studies.study import Arm, Point, Search
from spatialgrad.train.result import Result, StepSeconds
from spatialgrad.train.run import Run

Curve: TypeAlias = tuple["array[int]", "array[float]"]
"""Epochs (from 1) and values in per cent; arrays, as a study has very many of them."""
Matrix: TypeAlias = Sequence[Sequence[float]]


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

    name: str
    """The folder, relative to the study's."""
    seed: int
    state: State
    open: Callable[[], Run]
    """Opens the run again, for what is too large to be kept here."""
    folder: Path | None = None
    """None for an archived run."""
    epoch: int = 0
    epochs: int | None = None
    message: str = ""
    """Why it failed, or which file is damaged."""
    value: float | None = None
    """The study's metric in per cent; None until the run has finished."""
    result: Result | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    """The study's metric on training and test images, by its name in a line of metrics."""
    has_scalings: bool = False
    has_dependence: bool = False
    distances: Sequence[Mapping[str, Any]] = ()
    starts: Sequence[str] = ()
    """Times at which the run was started or resumed."""
    examples: Mapping[str, Any] | None = None
    """Captions and files of the example predictions."""

    @property
    def scalings(self) -> list[Scalings]:
        """All updates. They are by far the largest file of a run: read each time, and not kept."""
        entries = self.open().scalings if self.has_scalings else []
        return [
            Scalings(epoch=each.get("epoch", 0), layers=each["scalings"], dependence=each.get("dependence", {}))
            for each in entries
        ]

    def metric(self, name: str) -> float | None:
        """A metric of the result in per cent."""
        if self.result is None:
            return None
        value = self.result.value if name == self.result.metric else self.result.test.get(name)
        return None if value is None else 100 * value


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

    @property
    def summary(self) -> Summary | None:
        """Mean and deviation of these values; None until a run has finished."""
        return summarize(list(self.values.values()))

    def last(self, name: str) -> dict[int, float]:
        """The end of a curve, such as `train_accuracy`, in per cent, by seed, of the finished runs that have it."""
        curves = {run.seed: run.curves[name][1] for run in self.runs if run.value is not None}
        return {seed: values[-1] for seed, values in curves.items() if values}

    def metric(self, name: str) -> dict[int, float]:
        """A metric of the results in per cent, by seed."""
        return {run.seed: value for run in self.runs if (value := run.metric(name)) is not None}

    @property
    def results(self) -> list[Result]:
        """The results of the finished runs."""
        return [run.result for run in self.runs if run.result is not None]

    def mean(self, name: str) -> float | None:
        """The mean of a number of the results."""
        values = [getattr(result, name) for result in self.results]
        return statistics.fmean(values) if values else None

    @property
    def step_seconds(self) -> StepSeconds | None:
        """Time of a training step: the median over runs, from the shortest to the longest; None if not measured."""
        steps = [result.step_seconds for result in self.results if result.step_seconds is not None]
        if not steps:
            return None
        return StepSeconds(
            median=statistics.median(each.median for each in steps),
            low=min(each.low for each in steps),
            high=max(each.high for each in steps),
        )

    @property
    def processor_seconds(self) -> float | None:
        """Mean time of training alone, whatever else the machine does: that of a step times their number, and updates.

        None if the steps of a run were not measured.
        """
        times = [
            result.step_seconds.median * result.steps + result.update_seconds
            for result in self.results
            if result.step_seconds is not None
        ]
        return statistics.fmean(times) if times and len(times) == len(self.results) else None

    @property
    def memory_formats(self) -> tuple[str, ...]:
        """The layouts of the kernels in memory, where they are known."""
        return tuple(dict.fromkeys(result.memory_format for result in self.results if result.memory_format))

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
        results = [run.result for point in self.points for run in point.runs if run.result is not None]
        return sum(result.seconds for result in results)


@dataclass(frozen=True, kw_only=True)
class StudyResults:
    """A study with all its runs."""

    folder: Path
    """Its folder, or the archive."""
    record: StudyRecord
    arms: tuple[ArmResults, ...]
    searches: tuple[SearchResults, ...] = ()
    archived: bool = False
    """Whether it is an archive, which has no folder and no weights."""

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
        if mean is not None:
            mean += sum(other.mean("seconds") or 0.0 for other in self._paid_by(arm))
        if mean is None or arm.record.tuned_by is None:
            return mean
        return mean + sum(search.seconds for search in self.searches if search.record.name == arm.record.tuned_by)

    def training_seconds(self, arm: ArmResults) -> float | None:
        """The same of training alone; None if it was not measured, or settings were searched."""
        times = [each.processor_seconds for each in (arm, *self._paid_by(arm))]
        return None if None in times or arm.record.tuned_by else sum(time or 0.0 for time in times)

    def _paid_by(self, arm: ArmResults) -> list[ArmResults]:
        """The arm whose runs these start from, if its time counts as theirs."""
        return [each for each in self.arms if arm.record.pays_for_backbone and each.record.key == arm.record.backbone]
