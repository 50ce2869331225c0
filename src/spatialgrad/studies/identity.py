"""Whether the run in a folder is the planned one: `config.json` and `result.json` against `study.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from spatialgrad.studies.files import read_object
from spatialgrad.studies.record import ArmRecord, StudyRecord, read_best, start_field
from spatialgrad.train.config import FREE, flatten
from spatialgrad.train.errors import DamagedFileError
from spatialgrad.train.flags import flag
from spatialgrad.train.run import CONFIG, RESULT

MOST_DIFFERENCES = 3
"""Number of differing fields that a message lists."""
IN_RESULT = {"model": "model.name", "method": "method.name", "seed": "seed", "epochs": "budget.epochs"}
"""What a result repeats, and the field that it comes from."""


def planned_values(study: Path, record: StudyRecord) -> dict[str, dict[str, Any]]:
    """The fields that determine each planned run, with their values, by run folder.

    Args:
        study: The study's folder.
        record: The study; fields that a search has not chosen yet are left out.
    """
    planned: dict[str, dict[str, Any]] = {}
    for search in record.searches:
        fields = _fixed(search.config)
        for point in search.points:
            for run in point.runs:
                planned.setdefault(run.folder, {**fields, **point.values, "seed": run.seed})
    grids = {search.name: search.fields for search in record.searches}
    arms = {arm.key: arm for arm in record.arms}
    for arm in record.arms:
        fields = _fixed(arm.config)
        if arm.tuned_by is not None:
            chosen = _chosen(study, arm.tuned_by)
            undecided = () if chosen else grids.get(arm.tuned_by, ())
            fields = {name: value for name, value in {**fields, **chosen}.items() if name not in undecided}
        start = start_field(str(arm.config.get("task", "classification")))
        for run in arm.runs:
            backbone = {} if arm.backbone is None else {start: _backbone(arms.get(arm.backbone), run.seed)}
            planned.setdefault(run.folder, {**fields, **backbone, "seed": run.seed})
    return planned


def other_run(folder: Path, planned: Mapping[str, Any]) -> str:
    """How the finished run in a folder differs from the planned one; empty if it is the planned one.

    Args:
        folder: The run's folder.
        planned: Fields and values of the planned run; those that a file does not have are not compared.

    Raises:
        DamagedFileError: If its config or its result cannot be read.
    """
    try:
        config, result = flatten(read_object(folder / CONFIG)), read_object(folder / RESULT)
    except FileNotFoundError as error:
        raise DamagedFileError(f"{Path(str(error.filename)).name} is missing") from error
    if IN_RESULT["epochs"] not in config:
        raise DamagedFileError(f"{CONFIG} has no number of epochs")
    differing = [
        f"{flag(name)}: {config[name]!r} there, {value!r} planned"
        for name, value in planned.items()
        if name in config and not _same(config[name], value)
    ]
    if differing:
        more = f"; and {len(differing) - MOST_DIFFERENCES} more" if len(differing) > MOST_DIFFERENCES else ""
        return f"{CONFIG} is that of another run ({'; '.join(differing[:MOST_DIFFERENCES])}{more})"
    for name, field in IN_RESULT.items():
        if name in result and field in config and result[name] != config[field]:
            return f"{RESULT} is that of another run ({name} {result[name]!r}, but {config[field]!r} in {CONFIG})"
    return ""


def _fixed(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flatten(config).items() if name not in FREE}


def _chosen(study: Path, search: str) -> Mapping[str, Any]:
    try:
        return read_best(study, search) or {}
    except DamagedFileError:  # a search that chooses again, and a report, say so
        return {}


def _backbone(arm: ArmRecord | None, seed: int) -> PurePath:
    folders = [run.folder for run in arm.runs if run.seed == seed] if arm else []
    return PurePath(*folders[:1])


def _same(there: Any, planned: Any) -> bool:
    if isinstance(planned, PurePath):
        # The study's folder may have been moved, together with its backbones.
        parts = planned.parts
        return isinstance(there, str) and PurePath(there).parts[-len(parts) :] == parts if parts else True
    return bool(there == planned)
