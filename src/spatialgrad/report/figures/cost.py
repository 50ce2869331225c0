"""Cost: the metric against training time, and the time of each phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spatialgrad.report.figures.base import (
    INK,
    Key,
    PageFigure,
    colour,
    draw,
    grid,
    group_title,
    join_limited,
    plain,
    series_of,
)
from spatialgrad.report.results import ArmResults, StudyResults
from spatialgrad.report.statistics import Summary
from spatialgrad.report.tables.cells import capital, metric_name
from spatialgrad.report.tables.cost import time_unit
from spatialgrad.train.result import PHASES

MARKERS = "osD^vP*X"
PHASE_SERIES = {"training": 6, "evaluation": 5, "update": 1, "checkpoint": 4}


def metric_against_cost(study: StudyResults, prefix: str) -> PageFigure | None:
    """The metric against training cost, measured and published."""
    series, metric = series_of(study), metric_name(study.record.metric)
    # One kind of time for all: runs that share a machine with others take any time.
    steps = all(study.training_seconds(arm) is not None for arm in study.shown if arm.results)
    ours: dict[tuple[str, ...], list[tuple[ArmResults, float, Summary]]] = {}
    for group, arms in study.groups.items():
        for arm in arms:
            seconds = (study.training_seconds if steps else study.seconds)(arm)
            if seconds is not None and arm.summary is not None:
                ours.setdefault(group, []).append((arm, seconds, arm.summary))
    if not ours:
        return None
    time, factor = time_unit([seconds for points in ours.values() for _, seconds, _ in points])
    printed = {
        group: [(arm, each) for arm in study.groups[group] for each in arm.record.published if each.cost is not None]
        for group in ours
    }
    beside = any(printed.values())

    def point(ax: Any, arm: ArmResults, x: float, mean: float, std: float | None, *, hollow: bool = False) -> None:
        number = series[arm.label]
        fill = "none" if hollow else colour(number)
        marker = MARKERS[number % len(MARKERS)]
        ax.errorbar(x, mean, yerr=std, fmt=marker, color=colour(number), mfc=fill, ms=6, capsize=2, lw=1)

    def paint(axes: Sequence[Any]) -> None:
        places = iter(axes)
        for group, points in ours.items():
            ax = next(places)
            ax.set_title(f"{group_title(group)} (ours)".strip() if beside else group_title(group))
            for arm, seconds, summary in points:
                point(ax, arm, seconds * factor, summary.mean, summary.std)
            ax.set(xlabel=f"{time} per run", ylabel=f"{metric} (%)")
            if beside:
                ax = next(places)
                measured = next((arm.record.published_for for arm, _ in printed[group]), "")
                ax.set_title(f"{plain(measured, 40) or group_title(group)} (published)".strip())
                for arm, each in printed[group]:
                    point(ax, arm, each.cost or 0.0, each.mean, each.std, hollow=each.source != "paper")
                ax.set_xlabel(study.record.cost_unit or "published cost")
        for ax in places:
            ax.set_visible(False)
        for ax in axes:
            ax.margins(0.2)
            ax.set_xlim(left=0)

    shape, size = grid(len(ours) * (2 if beside else 1), columns=2 if beside else 3, panel=(2.5, 2.1))
    described = [
        f"{arm.name} {summary.mean:.2f} % in {seconds * factor:.3g} {time}"
        for points in ours.values()
        for arm, seconds, summary in points
    ]
    measured = "Time of the training steps and updates, without evaluation" if steps else "Wall-clock time"
    caption = f"{measured}. Error bars: ± one standard deviation." + (
        " Hollow: quoted by the paper from another one. Times measured on different machines are not comparable."
        * beside
    )
    return PageFigure(
        name="cost",
        title=f"{capital(metric)} against training cost",
        alt=f"Points of {metric} over {time} per run. {join_limited(described)}.",
        caption=caption,
        svg=draw(prefix, size, shape, paint),
        width=72 * size[0],
        legend=tuple(Key(label=label, series=index, shape="block") for label, index in series.items()),
    )


def overhead(study: StudyResults, prefix: str) -> PageFigure | None:
    """Time of every phase, arm by arm."""
    rows = [
        (arm.name, {phase: arm.mean(f"{phase}_seconds") or 0.0 for phase in PHASES})
        for arm in study.shown
        if arm.results
    ]
    if not rows:
        return None
    largest = max(sum(means.values()) for _, means in rows)
    name, factor = time_unit([largest])

    def paint(axes: Sequence[Any]) -> None:
        (ax,) = axes
        for position, (_, means) in enumerate(rows):
            left, total = 0.0, sum(means.values())
            for phase in PHASES:
                width = means[phase] * factor
                ax.barh(position, width, left=left, height=0.62, color=colour(PHASE_SERIES[phase]), lw=0)
                left += width
            share = f"{100 * means['update'] / total:.1f} % updates" if total and means["update"] else ""
            ax.annotate(share, (left, position), (4, 0), textcoords="offset points", va="center", color=INK, fontsize=8)
        ax.set_yticks(range(len(rows)), [plain(label, 44) for label, _ in rows])
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        ax.set_xlim(0, 1.22 * largest * factor)
        ax.set_xlabel(f"{name} per run")

    size = (7.2, 0.62 + 0.3 * len(rows))
    described = [
        f"{label} {sum(means.values()):.1f} s, of which "
        + ", ".join(f"{phase} {100 * means[phase] / max(sum(means.values()), 1e-9):.1f} %" for phase in PHASES)
        for label, means in rows
    ]
    return PageFigure(
        name="overhead",
        title="Overhead",
        alt=f"Bars of the time per run. {join_limited(described)}.",
        caption="Wall-clock time, means over finished runs. Updates measure scalings or grow branches.",
        svg=draw(prefix, size, (1, 1), paint),
        width=72 * size[0],
        legend=tuple(Key(label=phase, series=PHASE_SERIES[phase], shape="block") for phase in PHASES),
    )
