"""Studies by name, and the folders and archives that a user means by a name. To add one, write its file and list it."""

from __future__ import annotations

from pathlib import Path

from spatialgrad.studies.archive import is_archive
from spatialgrad.studies.own.adaptive import ADAPTIVE
from spatialgrad.studies.own.controls import CONTROLS
from spatialgrad.studies.own.fine_tuning import FINE_TUNING
from spatialgrad.studies.own.measurement import LIVE, MEASUREMENT, SOURCES
from spatialgrad.studies.own.quantization import QUANTIZATION
from spatialgrad.studies.own.where_it_helps import DATASETS, FITTED, LENGTH, REGIMES
from spatialgrad.studies.paper.figure8_k_search import K_SEARCH
from spatialgrad.studies.paper.figures4_6_scalings import KERNEL_MAGNITUDES, LEARNED_SCALINGS
from spatialgrad.studies.paper.lemma1 import REPARAM_EQUIVALENCE
from spatialgrad.studies.paper.table1_cifar import CIFAR
from spatialgrad.studies.paper.table2_imagenet import IMAGENET
from spatialgrad.studies.paper.table3_search_methods import SEARCH_METHODS
from spatialgrad.studies.paper.table4_architectures import ARCHITECTURES
from spatialgrad.studies.paper.table5_optimizers import OPTIMIZERS
from spatialgrad.studies.paper.table6_sensitivity import SENSITIVITY
from spatialgrad.studies.paper.tables7_8_fine_tuning import POSE, SEGMENTATION
from spatialgrad.studies.record import STUDIES as FOLDER
from spatialgrad.studies.record import STUDY
from spatialgrad.studies.study import SCALES, Study, slug
from spatialgrad.train.errors import ConfigError, TrainError
from spatialgrad.train.flags import as_config_error, check_name
from spatialgrad.utils.text import did_you_mean, find_object, is_object_name


class FailedRunsError(TrainError):
    """Some runs of a study have no result."""

    exit_code = 5


STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        CIFAR,
        IMAGENET,
        SEARCH_METHODS,
        K_SEARCH,
        ARCHITECTURES,
        OPTIMIZERS,
        SENSITIVITY,
        SEGMENTATION,
        POSE,
        LEARNED_SCALINGS,
        KERNEL_MAGNITUDES,
        REPARAM_EQUIVALENCE,
        DATASETS,
        REGIMES,
        QUANTIZATION,
        LIVE,
        MEASUREMENT,
        SOURCES,
        ADAPTIVE,
        CONTROLS,
        LENGTH,
        FITTED,
        FINE_TUNING,
    )
}


def get_study(name: str) -> Study:
    """The study with a name, or one of the user's as `package.module:NAME`.

    Raises:
        ConfigError: If the name is unknown; the message suggests the closest one.
    """
    if not is_object_name(name):
        for study in STUDIES.values():
            if slug(study.shows).replace("-", "") == slug(name).replace("-", ""):
                raise ConfigError(f"unknown study {name!r}; {study.shows} of the paper is the study {study.name!r}")
        check_name("study", name, STUDIES)
        return STUDIES[name]
    with as_config_error():
        study = find_object(name)
    if not isinstance(study, Study):
        raise ConfigError(f"{name} has type {type(study).__name__} and is not a Study")
    return study


def list_studies() -> list[Study]:
    """All studies: the paper's, in its order, then this package's own."""
    return list(STUDIES.values())


def find_studies(name: Path | str) -> list[Path]:
    """What a user means: a study's folder, an archive, or the folders of a study's name at all scales that were run.

    Raises:
        ConfigError: If there is none; the message says what to run, or suggests the closest name.
    """
    folder = Path(name)
    if (folder / STUDY).exists() or is_archive(folder):
        return [folder]
    if folder.suffix == "" and is_archive(folder.with_name(f"{folder.name}.jsonl")):
        return [folder.with_name(f"{folder.name}.jsonl")]
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
