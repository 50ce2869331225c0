"""Studies by name. To add one, write its file and list it here."""

from __future__ import annotations

from spatialgrad.studies.own.adaptive import ADAPTIVE
from spatialgrad.studies.own.controls import CONTROLS
from spatialgrad.studies.own.datasets import DATASETS
from spatialgrad.studies.own.fitted import FITTED
from spatialgrad.studies.own.length import LENGTH
from spatialgrad.studies.own.live import LIVE
from spatialgrad.studies.own.regimes import REGIMES
from spatialgrad.studies.own.rivals import RIVALS
from spatialgrad.studies.own.sources import SOURCES
from spatialgrad.studies.paper.figure6_kernel_magnitudes import KERNEL_MAGNITUDES
from spatialgrad.studies.paper.figure8_k_search import K_SEARCH
from spatialgrad.studies.paper.figures4_5_learned_scalings import LEARNED_SCALINGS
from spatialgrad.studies.paper.lemma1 import REPARAM_EQUIVALENCE
from spatialgrad.studies.paper.table1_cifar import CIFAR
from spatialgrad.studies.paper.table2_imagenet import IMAGENET
from spatialgrad.studies.paper.table3_search_methods import SEARCH_METHODS
from spatialgrad.studies.paper.table4_architectures import ARCHITECTURES
from spatialgrad.studies.paper.table5_optimizers import OPTIMIZERS
from spatialgrad.studies.paper.table6_sensitivity import SENSITIVITY
from spatialgrad.studies.paper.table7_segmentation import SEGMENTATION
from spatialgrad.studies.paper.table8_pose import POSE
from spatialgrad.studies.study import Study
from spatialgrad.train.flags import check_name

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
        RIVALS,
        LIVE,
        SOURCES,
        ADAPTIVE,
        CONTROLS,
        LENGTH,
        FITTED,
    )
}


def get_study(name: str) -> Study:
    """The study with a name.

    Raises:
        ConfigError: If the name is unknown; the message suggests the closest one.
    """
    check_name("study", name, STUDIES)
    return STUDIES[name]


def list_studies() -> list[Study]:
    """All studies: the paper's, in its order, then this package's own."""
    return list(STUDIES.values())
