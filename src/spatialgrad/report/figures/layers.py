"""The layers of a network in a figure: which runs and layers are shown, and layers grouped by depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from spatialgrad.report.results import ArmResults, RunResults, StudyResults
from spatialgrad.report.scalings_log import Matrix

MOST_ARMS = 4
THIRDS = ("early layers", "middle layers", "late layers")

T = TypeVar("T")


def runs_by_seed(study: StudyResults) -> list[tuple[ArmResults, RunResults]]:
    """The runs with scalings: one seed of every arm before a second one of any."""
    found = [(place, arm, run) for arm in study.shown for place, run in enumerate(arm.runs) if run.scalings]
    return [(arm, run) for _, arm, run in sorted(found, key=lambda each: each[0])]


def one_per_arm(runs: Sequence[tuple[ArmResults, RunResults]]) -> list[tuple[ArmResults, RunResults]]:
    """The first run of each of the first arms."""
    return list({arm.record.key: (arm, run) for arm, run in reversed(runs)}.values())[::-1][:MOST_ARMS]


def published_layers(arm: ArmResults, layers: Sequence[str]) -> list[str]:
    """The layers of a network that the paper's figure shows."""
    there = [index for index in arm.record.layers if -len(layers) <= index < len(layers)]
    return list(dict.fromkeys(layers[index] for index in there))


def evenly(values: Sequence[T], most: int) -> list[T]:
    """At most so many values: the first, the last, and some evenly in between."""
    if len(values) <= most:
        return list(values)
    return [values[round(index * (len(values) - 1) / (most - 1))] for index in range(most)]


def thirds(layers: Sequence[T]) -> dict[str, Sequence[T]]:
    """Layers from first to last as early, middle and late ones, as many of each as possible; none of them empty."""
    edges = [round(index * len(layers) / 3) for index in range(4)]
    parts = {name: layers[edges[index] : edges[index + 1]] for index, name in enumerate(THIRDS)}
    return {name: part for name, part in parts.items() if part}


def mean_by_third(values: Mapping[str, float]) -> dict[str, float]:
    """The mean over the early, middle and late layers of a value by layer."""
    return {name: sum(part) / len(part) for name, part in thirds(list(values.values())).items()}


def centre_of(values: Matrix | None) -> str:
    """The centre of a matrix as text."""
    return "unknown" if values is None else f"{values[len(values) // 2][len(values[0]) // 2]:.2f}"


def positions(matrix: Matrix) -> Iterator[tuple[int, int, float]]:
    """Vertical and horizontal displacement from the centre, and the value there."""
    rows, columns = len(matrix), len(matrix[0])
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            yield i - rows // 2, j - columns // 2, value
