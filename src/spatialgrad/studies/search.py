"""Grid searches: the point with the best finished runs completes the arms that name the search.

The choice is written once and is final, even when failed points are tried again later: arms may already be trained with
it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from spatialgrad.studies.record import best_file, read_best
from spatialgrad.studies.study import Point, Search
from spatialgrad.train.jsonfiles import write_json

Value = Callable[[str], float | None]
"""The headline metric of the run in a folder of the study; None if it has no result."""


def point_value(point: Point, value: Value) -> float | None:
    """The mean headline metric of a point's runs; None until all have finished."""
    values = [found for run in point.runs if (found := value(run.folder)) is not None]
    return sum(values) / len(values) if values and len(values) == len(point.runs) else None


def decide(study: Path, search: Search, value: Value) -> dict[str, Any] | None:
    """The values of the best point of a search whose runs have all ended; None if every point has failed.

    Args:
        study: The study's folder.
        search: The search.
        value: Gives the result of each run.

    Raises:
        DamagedFileError: If an earlier choice cannot be read.
    """
    if (chosen := read_best(study, search.name)) is not None:
        return chosen
    values = {number: point_value(point, value) for number, point in enumerate(search.points)}
    known = {number: found for number, found in values.items() if found is not None}
    if not known:
        return None
    best = max(known, key=lambda number: known[number])  # the first of several that are equally good
    path, chosen = best_file(study, search.name), dict(search.points[best].values)
    path.parent.mkdir(parents=True, exist_ok=True)
    outcome = {"value": known[best], "points": len(values), "failed": len(values) - len(known)}
    write_json(path, {"values": chosen, **outcome})
    return chosen
