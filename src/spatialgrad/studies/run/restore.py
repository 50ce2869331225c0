"""Kept runs that a study has lost, or that another study has trained: they are not trained again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from spatialgrad.studies.kept import digest, portable_values, read_kept, unpack_run
from spatialgrad.studies.plan import Job, Plan
from spatialgrad.train.errors import ConfigError

UNFINISHED = ".restoring"
"""Ending of a folder's name while a run is written into it."""


def restore_runs(plan: Plan, keep: Path, complain: Callable[[str], None]) -> list[Job]:
    """Write kept runs into the folders of planned runs that have none yet and compute the same.

    Args:
        plan: The planned runs.
        keep: Folder of kept studies; which study a run was kept from does not matter.
        complain: Receives the reason why a kept run cannot be used.

    Returns:
        The restored runs.
    """
    missing = [job for job in _without_weights(plan) if not job.folder.exists()]
    if not missing:
        return []
    kept: dict[str, Path] = {}
    for path in sorted(keep.glob("*/runs/**/seed*.json")):
        try:
            kept.setdefault(read_kept(path)["digest"], path)
        except ConfigError as error:
            complain(f"not restored: {error}")
    restored = []
    for job in missing:
        if same := kept.get(digest(portable_values(job.config, plan.folder))):
            _restore(same, job.folder)
            restored.append(job)
    return restored


def _restore(path: Path, folder: Path) -> None:
    """Write a kept run into a new folder, which has its name only when it is complete."""
    unfinished = folder.with_name(f"{folder.name}{UNFINISHED}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    unpack_run(path, unfinished)
    unfinished.rename(folder)


def _without_weights(plan: Plan) -> list[Job]:
    """The runs of which only the result counts, and whose config is complete.

    Weights are not kept, hence no backbones; the points of a search belong to its journal.
    """
    backbones = {job.backbone for job in plan.jobs}
    points = {plan.folder / run.folder for search in plan.searches for point in search.points for run in point.runs}
    return [
        job
        for job in plan.jobs
        if job.tuned_by is None and job.backbone is None and job.folder not in backbones | points
    ]
