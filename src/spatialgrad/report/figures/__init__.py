"""The figures of a report, by the names that studies use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from spatialgrad.report.figures import cost, curves, scalings, search
from spatialgrad.report.figures.base import NO_DATA, Figure
from spatialgrad.report.figures.pictures import examples
from spatialgrad.report.load import Collected
from spatialgrad.train.config.groups import check_name

FIGURES: Mapping[str, Callable[[Collected, str], Figure | None]] = MappingProxyType(
    {
        "cost": cost.metric_against_cost,
        "learning-curves": curves.learning_curves,
        "overhead": cost.overhead,
        "k-curve": search.k_curve,
        "search": search.search,
        "scalings": scalings.scalings,
        "kernel-magnitudes": scalings.kernel_magnitudes,
        "distances": curves.distances,
        "examples": examples,
    }
)
"""Each takes a study and a prefix for ids; None is the answer as long as there is nothing to show."""


def build_figures(study: Collected, prefix: str) -> tuple[Figure, ...]:
    """The figures of a study, in its order; searches are shown wherever there are some.

    Args:
        study: Its data.
        prefix: Of ids, unique in the page.

    Raises:
        ConfigError: If the study asks for a figure that is not known.
    """
    found = []
    searched = ("search",) if study.searches and "search" not in study.record.figures else ()
    for name in (*study.record.figures, *searched):
        check_name("figure", name, FIGURES)
        drawn = FIGURES[name](study, f"{prefix}-{name}")
        title = name.replace("-", " ").capitalize()
        found.append(drawn or Figure(name=name, title=title, alt=f"{title}: {NO_DATA}."))
    return tuple(found)
