"""The figures of a report, by the names that studies use."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from types import MappingProxyType

from spatialgrad.report.figures.base import NO_DATA, PageFigure, no_data
from spatialgrad.report.figures.cost import metric_against_cost, overhead
from spatialgrad.report.figures.curves import distances, learning_curves
from spatialgrad.report.figures.examples import examples
from spatialgrad.report.figures.gains import gain_map, gains
from spatialgrad.report.figures.int8 import change_in_int8
from spatialgrad.report.figures.kernels import kernel_magnitudes, kernel_similarity
from spatialgrad.report.figures.scalings import centre_shares_over_depth, dependence, scalings
from spatialgrad.report.figures.search import k_curve, search
from spatialgrad.report.results import StudyResults
from spatialgrad.train.flags import check_name

FIGURES: Mapping[str, Callable[[StudyResults, str], PageFigure | None]] = MappingProxyType(
    {
        "cost": metric_against_cost,
        "learning-curves": learning_curves,
        "overhead": overhead,
        "k-curve": k_curve,
        "search": search,
        "scalings": scalings,
        "dependence": dependence,
        "centre-share": centre_shares_over_depth,
        "kernel-magnitudes": kernel_magnitudes,
        "kernel-similarity": kernel_similarity,
        "distances": distances,
        "examples": examples,
        "gains": gains,
        "gain-map": gain_map,
        "int8": change_in_int8,
    }
)
"""Each takes a study and a prefix for ids, and returns None as long as there is nothing to show."""

NOT_ARCHIVED = "No data: all runs have finished without it, or were archived without their weights and predictions."


def build_figures(study: StudyResults, prefix: str) -> tuple[PageFigure, ...]:
    """The figures of a study, in its order, and its searches if it has any.

    Args:
        study: The results.
        prefix: Prefix of all ids, unique within the page.

    Raises:
        ConfigError: If the study names an unknown figure.
    """
    found = []
    finished = all(run.value is not None for run in study.runs)
    searched = ("search",) if study.searches and "search" not in study.record.figures else ()
    for name in (*study.record.figures, *searched):
        check_name("figure", name, FIGURES)
        drawn = FIGURES[name](study, f"{prefix}-{name}")
        title = name.replace("-", " ").capitalize()
        found.append(drawn or no_data(name, title, NOT_ARCHIVED if finished else NO_DATA))
    gc.collect()  # drawings are full of cycles, and take tens of MB until these are collected
    return tuple(found)
