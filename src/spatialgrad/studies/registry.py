"""The studies by name. To add one: write its file, and name it here."""

from __future__ import annotations

from spatialgrad.studies.architectures import ARCHITECTURES
from spatialgrad.studies.base import Study
from spatialgrad.studies.cifar import CIFAR
from spatialgrad.studies.dense import POSE, SEGMENTATION
from spatialgrad.studies.equivalence import REPARAM_EQUIVALENCE
from spatialgrad.studies.figures import KERNEL_MAGNITUDES, LEARNED_SCALINGS
from spatialgrad.studies.imagenet import IMAGENET
from spatialgrad.studies.k_search import K_SEARCH
from spatialgrad.studies.optimizers import OPTIMIZERS
from spatialgrad.studies.search_methods import SEARCH_METHODS
from spatialgrad.studies.sensitivity import SENSITIVITY
from spatialgrad.train.config import check_name

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
    )
}


def get_study(name: str) -> Study:
    """A study by its name.

    Raises:
        ConfigError: If there is none of this name; the message suggests the nearest.
    """
    check_name("study", name, STUDIES)
    return STUDIES[name]


def list_studies() -> list[Study]:
    """All studies, in the order of the paper."""
    return list(STUDIES.values())
