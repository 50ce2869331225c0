"""S over distance and depth: what the scalings are made from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from itertools import islice
from typing import Any

from spatialgrad.report.figures.base import Key, PageFigure, colour, draw, plain, speaking
from spatialgrad.report.figures.heatmap import HeatRow, heat_rows, share_colour
from spatialgrad.report.figures.layers import (
    MOST_ARMS,
    THIRDS,
    evenly,
    positions,
    published_layers,
    thirds,
)
from spatialgrad.report.results import StudyResults
from spatialgrad.report.scalings_log import Matrix

NEIGHBOURS = {1.0: 0, math.sqrt(2): 1}
"""Distances of the eight neighbours, and the colour index of each."""


def dependence(study: StudyResults, prefix: str) -> PageFigure | None:
    """S over pixel distance and over depth, and S itself for some layers; one seed per arm."""
    by_arm = ((arm, (run for run in arm.runs if run.scalings.measured)) for arm in study.shown)
    shown = list(islice(((arm, run) for arm, runs in by_arm for run in islice(runs, 1)), MOST_ARMS))
    if not shown:
        return None
    parts, spoken, width = [], [], 0.0
    for number, (arm, run) in enumerate(shown):
        updates = [update for update in run.scalings.read() if update.dependence]
        first, last = updates[0], updates[-1]
        # Layers whose inputs carry no information have no S.
        layers = [name for name in last.layers if name in last.dependence]
        curves = over_distance({name: last.dependence[name] for name in layers})

        paint = partial(_paint, curves=curves, layers=layers, start=first.dependence, end=last.dependence)
        size = (7.0, 2.6)
        title = escape(plain(f"{arm.name}, seed {run.seed}", 100))
        chosen = published_layers(arm, layers) or evenly(layers, 3)
        row = HeatRow(
            title="S", matrices=[last.dependence[name] for name in chosen], largest=1.0, colour_of=share_colour
        )
        heat, own = heat_rows([row], chosen)
        drawing = draw(f"{prefix}-{number}", size, (1, 2), paint)
        parts.append(f'<p class="drawing-title">{title}</p>{drawing}{heat}')
        width = max(width, 72 * size[0], own)
        for name, curve in curves.items():
            values = ", ".join(f"{value:.2f} at {distance:.2f}" for distance, value in curve.items() if distance)
            spoken.append(f"{arm.name}, {name}: {values}")
    return PageFigure(
        name="dependence",
        title="Spatial dependence over distance and depth",
        alt=f"Curves of the dependence S of two pixels over their distance. After the last update: {speaking(spoken)}.",
        caption="Left: S over the distance of two pixels, mean over the early, middle and late third of the layers. "
        "Right: S of direct (distance 1) and diagonal (1.41) neighbours over depth; solid: last update, dashed: first. "
        "Squares: S of some layers at the last update. One seed per arm; S is the mean over channels.",
        svg="".join(parts),
        width=width,
        legend=(
            *(Key(label=name, series=2 + index) for index, name in enumerate(THIRDS)),
            Key(label="distance 1", series=0),
            Key(label="distance 1.41", series=1),
        ),
    )


def by_distance(S: Matrix) -> dict[float, float]:
    """The mean of S over all displacements of the same length, by that length."""
    found: dict[float, list[float]] = {}
    for i, j, value in positions(S):
        found.setdefault(math.sqrt(i * i + j * j), []).append(value)
    return {distance: sum(found[distance]) / len(found[distance]) for distance in sorted(found)}


def over_distance(layers: Mapping[str, Matrix]) -> dict[str, dict[float, float]]:
    """The curve over distance of the early, middle and late layers: the mean over those whose kernel reaches so far."""
    curves: dict[str, dict[float, float]] = {}
    for name, part in thirds([by_distance(S) for S in layers.values()]).items():
        distances = sorted({distance for curve in part for distance in curve})
        values = {distance: [curve[distance] for curve in part if distance in curve] for distance in distances}
        curves[name] = {distance: sum(each) / len(each) for distance, each in values.items()}
    return curves


def _paint(
    axes: Sequence[Any],
    *,
    curves: Mapping[str, Mapping[float, float]],
    layers: Sequence[str],
    start: Mapping[str, Matrix],
    end: Mapping[str, Matrix],
) -> None:
    left, right = axes
    for name, curve in curves.items():
        shade = colour(2 + THIRDS.index(name))
        left.plot(list(curve), list(curve.values()), "o-", color=shade, ms=4, lw=1.5)
    left.set_xlabel("distance in pixels")
    left.set_ylabel("S")
    left.set_ylim(0, 1.05)
    for distance, index in NEIGHBOURS.items():
        for source, style in ((start, "--"), (end, "o-")):
            points = [
                (depth, at[distance])
                for depth, name in enumerate(layers, 1)
                if name in source and distance in (at := by_distance(source[name]))
            ]
            if points:
                right.plot(*zip(*points, strict=True), style, color=colour(index), ms=3.5, lw=1.3)
    right.set_xlabel("layer")
    right.set_ylim(bottom=0)
    right.xaxis.get_major_locator().set_params(integer=True)
