"""G over depth and time."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from spatialgrad.report.figures.base import PageFigure, speaking
from spatialgrad.report.figures.heatmap import HeatRow, heat_rows, scale_of
from spatialgrad.report.figures.layers import (
    MOST_ARMS,
    centre_of,
    evenly,
    one_per_arm,
    published_layers,
    runs_by_seed,
)
from spatialgrad.report.results import ArmResults, RunResults, StudyResults
from spatialgrad.report.scalings_log import Matrix, Scalings

MOST_UPDATES, MOST_RUNS, MOST_LAYERS = 12, 24, 35


def scalings(study: StudyResults, prefix: str) -> PageFigure | None:
    """G of every layer over depth and time: an overview to print, and all updates to choose from."""
    shown = runs_by_seed(study)
    if not shown:
        return None
    parts, spoken, width = [], [], 0.0
    overviews = one_per_arm(shown)
    for arm, run in overviews:
        svg, own, said = _overview(arm, run)
        title = escape(f"{arm.name}, seed {run.seed}")
        parts.append(f'<p class="drawing-title">{title}</p>{svg}')
        spoken += said
        width = max(width, own)
    few = "" if len({arm.record.key for arm, _ in shown}) <= MOST_ARMS else f" Only the first {MOST_ARMS} arms."
    bold = " Bold: the layers shown in the paper." if any(arm.record.layers for arm, _ in overviews) else ""
    return PageFigure(
        name="scalings",
        title="Scalings over depth and time",
        alt=f"Heat maps of the factor on the gradient. Centre of the kernel: {speaking(spoken)}.",
        caption=f"Layers from first to last, one seed per arm.{few}{bold} 1 (nearly white) leaves the gradient "
        "unchanged; blue is smaller, red is larger. Every matrix has mean 1.",
        svg="".join(parts),
        width=width,
        data={
            "id": prefix,
            "runs": [_data(*each) for each in shown[:MOST_RUNS]],
            "left": max(0, len(shown) - MOST_RUNS),
        },
    )


def _overview(arm: ArmResults, run: RunResults) -> tuple[str, float, list[str]]:
    there = run.scalings.read()
    first, last = there[0], there[-1]
    updates = {id(each): each for each in (first, there[(len(there) - 1) // 2], last)}.values()
    names = evenly(list(last.layers), MOST_LAYERS)
    largest = scale_of(G for update in updates for G in update.layers.values())
    rows = [
        HeatRow(title=f"after epoch {each.epoch}", matrices=[each.layers.get(name) for name in names], largest=largest)
        for each in updates
    ]
    svg, width = heat_rows(rows, names, bold=published_layers(arm, list(last.layers)))
    said = [
        f"{arm.name}, {name}: {_spoken(first, name)}{'' if last is first else f', {_spoken(last, name)}'}"
        for name in published_layers(arm, list(last.layers)) or evenly(list(last.layers), 3)
    ]
    return svg, width, said


def _spoken(update: Scalings, name: str) -> str:
    return f"{centre_of(update.layers.get(name))} after epoch {update.epoch}"


def _data(arm: ArmResults, run: RunResults) -> dict[str, Any]:
    there = run.scalings.read()
    updates = evenly(there, MOST_UPDATES)
    layers = list(updates[-1].layers)
    return {
        "arm": arm.name,
        "seed": run.seed,
        "layers": layers,
        "epochs": [update.epoch for update in updates],
        "updates": len(there),
        "G": [[_rounded(update.layers.get(name)) for name in layers] for update in updates],
    }


def _rounded(G: Matrix | None) -> Sequence[Sequence[float]] | None:
    return None if G is None else [[round(value, 2) for value in row] for row in G]
