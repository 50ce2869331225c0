"""Curves over a training: the metric with a band over seeds, and the distance between two networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from spatialgrad.report.figures.base import (
    Key,
    PageFigure,
    colour,
    draw,
    evenly,
    grid,
    group_title,
    join_limited,
    relevant_runs,
    series_of,
)
from spatialgrad.report.results import ArmResults, RunResults, StudyResults
from spatialgrad.report.statistics import Summary, summarize
from spatialgrad.report.tables.cells import metric_name

LARGEST_STEPS = 400
"""Largest number of points of a curve; longer ones are thinned."""
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
"""Instead of math text: drawings show all texts literally, as names may contain anything."""


def learning_curves(study: StudyResults, prefix: str) -> PageFigure | None:
    """Training and test metric over epochs, with a band of one standard deviation."""
    series, metric = series_of(study), study.record.metric
    names = (f"test_{metric}", f"train_{metric}")
    groups = {
        name: arms for name, arms in study.groups.items() if any(_curve(arm, each) for arm in arms for each in names)
    }
    if not groups:
        return None
    described: list[str] = []
    trained = False

    def paint(axes: Sequence[Any]) -> None:
        nonlocal trained
        for ax, (group, arms) in zip(axes, groups.items(), strict=False):
            ax.set_title(group_title(group))
            for arm in arms:
                shade = colour(series[arm.label])
                training, test = _curve(arm, f"train_{metric}"), _curve(arm, f"test_{metric}")
                if training:
                    trained = True
                    ax.plot(list(training), [each.mean for each in training.values()], "--", color=shade, lw=0.9)
                if test:
                    epochs, summaries = list(test), list(test.values())
                    ax.plot(epochs, [each.mean for each in summaries], color=shade, lw=1.6)
                    low = [each.mean - (each.std or 0.0) for each in summaries]
                    high = [each.mean + (each.std or 0.0) for each in summaries]
                    ax.fill_between(epochs, low, high, color=shade, alpha=0.2, lw=0)
                    last = summaries[-1]
                    spread = "" if last.std is None else f" ± {last.std:.2f}"
                    seeds = f"{last.n} seed{'' if last.n == 1 else 's'}"
                    described.append(f"{arm.name} {last.mean:.2f}{spread} % after epoch {epochs[-1]} ({seeds})")
            ax.xaxis.get_major_locator().set_params(integer=True)
        for ax in axes[len(groups) :]:
            ax.set_visible(False)
        for ax in axes[: len(groups)]:
            ax.set_xlabel("epoch")
            ax.set_ylabel(f"{metric_name(metric)} (%)")

    shape, size = grid(len(groups), panel=(2.7, 2.1))
    svg = draw(prefix, size, shape, paint)
    legend = [Key(label=label, series=index) for label, index in series.items()]
    caption = "Lines: means over seeds. Bands: ± one standard deviation."
    if trained:
        caption += " Solid: test; dashed: training, on augmented images."
    return PageFigure(
        name="learning-curves",
        title="Learning curves",
        alt=f"Curves of the {metric_name(metric)} over epochs. Last evaluation: "
        f"{join_limited(described) or 'none yet'}.",
        caption=caption,
        svg=svg,
        width=72 * size[0],
        legend=tuple(legend),
    )


def distances(study: StudyResults, prefix: str) -> PageFigure | None:
    """Distance between the branched and the scaled network over steps, on a logarithmic scale."""
    arms = [arm for arm in study.shown if any(_distances(run) for run in arm.runs)]
    if not arms:
        return None
    described: list[str] = []

    def paint(axes: Sequence[Any]) -> None:
        (ax,) = axes
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(lambda value, _: _power_of_ten(value))
        ax.yaxis.set_minor_formatter(lambda value, _: "")
        for index, arm in enumerate(arms):
            for run in arm.runs:
                points = _distances(run)
                if points:
                    ax.plot(*zip(*points, strict=True), color=colour(index), lw=1.4)
                    described.append(f"{arm.name}, seed {run.seed}: {points[-1][1]:.1e} after step {points[-1][0]:.0f}")
        ax.set_xlabel("step")
        ax.set_ylabel("relative distance between kernels")

    size = (5.4, 3.1)
    svg = draw(prefix, size, (1, 1), paint)
    return PageFigure(
        name="distances",
        title="Distance between the branched and the scaled network",
        alt=f"Distance over steps on a logarithmic scale. {join_limited(described)}.",
        caption="One line per seed. In exact arithmetic the distance of a scaled network is 0; the curves show "
        "rounding errors, which training amplifies.",
        svg=svg,
        width=72 * size[0],
        legend=tuple(Key(label=arm.name, series=index) for index, arm in enumerate(arms)),
    )


def _curve(arm: ArmResults, name: str) -> dict[int, Summary]:
    """Summaries over seeds in per cent, by epoch (from 1)."""
    values: dict[int, list[float]] = {}
    for run in relevant_runs(arm):
        for epoch, value in zip(*run.curves.get(name, ((), ())), strict=True):
            values.setdefault(epoch, []).append(value)
    summaries = {epoch: summarize(values[epoch]) for epoch in evenly(sorted(values), LARGEST_STEPS)}
    return {epoch: summary for epoch, summary in summaries.items() if summary is not None}


def _power_of_ten(value: float) -> str:
    exponent = round(math.log10(value)) if value > 0 else 0
    return "10" + str(exponent).translate(SUPERSCRIPT) if value > 0 else ""


def _distances(run: RunResults) -> list[tuple[float, float]]:
    pairs = [(entry["step"], entry["distance"]) for entry in run.distances]
    # A logarithmic scale has no 0, and the networks start equal.
    return [(step, distance) for step, distance in evenly(pairs, LARGEST_STEPS) if distance]
