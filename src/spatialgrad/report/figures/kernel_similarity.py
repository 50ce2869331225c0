"""How similar scalings are to the final weights: their correlation, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from spatialgrad.report.figures.base import Key, PageFigure, colour, draw, group_title, series_of, speaking
from spatialgrad.report.figures.kernel_magnitudes import magnitudes_of_run, run_with_weights
from spatialgrad.report.figures.layers import MOST_ARMS
from spatialgrad.report.results import ArmResults, StudyResults
from spatialgrad.report.scalings_log import Matrix
from spatialgrad.report.statistics import correlation
from spatialgrad.report.tables.cells import signed
from spatialgrad.train.errors import CheckpointError

Curve = dict[int, float]
"""Correlations by the layer's place, from 1."""


def kernel_similarity(study: StudyResults, prefix: str) -> PageFigure | None:
    """Correlation of G and mean |W| over the positions of each kernel; the reference's weights are the control."""
    panels = list(islice(((arm, curves) for arm in study.shown if (curves := _curves(study, arm))), MOST_ARMS))
    if not panels:
        return None
    series, spoken = series_of(study), []
    for arm, curves in panels:
        for other, curve in curves:
            mean = signed(sum(curve.values()) / len(curve))
            spoken.append(f"G of {arm.name} and |W| of {other.name}: mean {mean} over {len(curve)} layers")

    def paint(axes: Sequence[Any]) -> None:
        for ax, (arm, curves) in zip(axes, panels, strict=True):
            ax.set_title(group_title(arm.group))
            for other, curve in curves:
                style = "o-" if other is arm else "s--"
                ax.plot(list(curve), list(curve.values()), style, color=colour(series[other.label]), ms=4, lw=1.4)
            ax.axhline(0, color=colour(6), lw=1, ls=":")
            ax.set_ylim(-1.05, 1.05)
            ax.set_xlabel("layer")
            ax.set_ylabel("correlation of G and |W|")
            ax.xaxis.get_major_locator().set_params(integer=True)

    size = (5.4, 2.8 * len(panels))
    labels = list(dict.fromkeys((other.label, other is not arm) for arm, curves in panels for other, _ in curves))
    return PageFigure(
        name="kernel-similarity",
        title="Similarity of scalings and final weights",
        alt=f"Correlations of G and mean |W| by layer. {speaking(spoken)}.",
        caption="Pearson's correlation over the positions of a kernel, between G of the last update and the mean |W| "
        "of the newest checkpoint; 1: the same shape. Dashed: the weights of the reference, which was trained without "
        f"G. One seed. {speaking(spoken)}.",
        svg=draw(prefix, size, (len(panels), 1), paint),
        width=72 * size[0],
        legend=tuple(
            Key(label=f"|W| of {label}", series=series[label], shape="dashed" if control else "line")
            for label, control in labels
        ),
    )


def similarity(scalings: Mapping[str, Matrix], magnitudes: Mapping[str, Matrix | None]) -> Curve:
    """The correlation of G and |W| of each layer, by its place; layers in which either is constant are left out."""
    found: Curve = {}
    for place, (name, G) in enumerate(scalings.items(), 1):
        W = magnitudes.get(name)
        if W is None or (len(W), len(W[0])) != (len(G), len(G[0])):
            continue
        value = correlation([v for row in G for v in row], [v for row in W for v in row])
        if value is not None:
            found[place] = value
    return found


def _curves(study: StudyResults, arm: ArmResults) -> list[tuple[ArmResults, Curve]]:
    """For an arm with measured scalings: the similarity to its own weights, and to those of its reference."""
    own = run_with_weights(arm)
    update = own.scalings.last if own is not None else None
    if own is None or update is None:
        return []
    reference = study.reference(arm)
    found = []
    for other in (arm, *([reference] if reference is not None else [])):
        run = own if other is arm else run_with_weights(other)
        try:
            curve = similarity(update.layers, magnitudes_of_run(run.folder)) if run else {}
        except CheckpointError:  # the figure of kernel magnitudes gives the reason
            continue
        if curve:
            found.append((other, curve))
    return found
