"""The studies that a user means by a folder or a name."""

from __future__ import annotations

from pathlib import Path

from spatialgrad.studies.record import STUDIES as FOLDER
from spatialgrad.studies.record import STUDY
from spatialgrad.studies.registry import STUDIES
from spatialgrad.studies.study import SCALES
from spatialgrad.torch_utils.names import did_you_mean
from spatialgrad.train.errors import ConfigError


def find_studies(name: Path | str) -> list[Path]:
    """The folders that a user means: a study's folder, or those of a study's name at all scales that were run.

    Raises:
        ConfigError: If there is none; the message says what to run, or suggests the closest name.
    """
    folder = Path(name)
    if (folder / STUDY).exists():
        return [folder]
    named = [FOLDER / folder, *(FOLDER / f"{name}-{scale}" for scale in SCALES)]
    found = [path for path in named if (path / STUDY).exists()]
    if not found:
        raise ConfigError(_nothing_found(str(name)))
    return found


def _nothing_found(name: str) -> str:
    there = sorted(path.parent.name for path in FOLDER.glob(f"*/{STUDY}"))
    listed = f"{FOLDER}/ contains {', '.join(there)}" if there else f"{FOLDER}/ contains no study"
    study, _, scale = name.rpartition("-")
    if name in STUDIES or (study in STUDIES and scale in SCALES):
        study, scale = (name, "pocket") if name in STUDIES else (study, scale)
        return f"{name} has not been run here ({listed}); run it: spatialgrad study run {study} --scale {scale}"
    hint = did_you_mean(name, [*there, *STUDIES], otherwise="see `spatialgrad study list`")
    return f"no study found in {name} or {FOLDER}/{name}-SCALE (no {STUDY}); {hint} ({listed})"
