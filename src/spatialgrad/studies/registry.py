"""The studies by name. To add one: write its file, and name it here."""

from __future__ import annotations

from spatialgrad.studies.paper.figure8_k_search import K_SEARCH
from spatialgrad.studies.paper.figures4_6_scalings import KERNEL_MAGNITUDES, LEARNED_SCALINGS
from spatialgrad.studies.paper.lemma1 import REPARAM_EQUIVALENCE
from spatialgrad.studies.paper.table1_cifar import CIFAR
from spatialgrad.studies.paper.table2_imagenet import IMAGENET
from spatialgrad.studies.paper.table3_search_methods import SEARCH_METHODS
from spatialgrad.studies.paper.table4_architectures import ARCHITECTURES
from spatialgrad.studies.paper.table5_optimizers import OPTIMIZERS
from spatialgrad.studies.paper.table6_sensitivity import SENSITIVITY
from spatialgrad.studies.paper.tables7_8_dense import POSE, SEGMENTATION
from spatialgrad.studies.study import Study
from spatialgrad.train.config.groups import check_name

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
