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
    plain,
    series_of,
    speaking,
)
from spatialgrad.report.results import StudyResults
from spatialgrad.report.statistics import summarize
from spatialgrad.report.tables.cells import capital, metric_name
from spatialgrad.report.tables.cost import time_unit
from spatialgrad.train.result import PHASES

MARKERS = "osD^vP*X"
PHASE_SERIES = {"training": 6, "evaluation": 5, "update": 1, "checkpoint": 4}


def metric_against_cost(study: StudyResults, prefix: str) -> PageFigure | None:
    """The metric against training cost, measured and published."""
    series, metric = series_of(study), metric_name(study.record.metric)
    ours = {
        group: [(arm, seconds, summary) for arm in arms if (seconds := study.seconds(arm)) is not None
                and (summary := summarize(list(arm.values.values()))) is not None]
        for group, arms in study.groups.items()
    }  # fmt: skip
    printed = {
        group: [(arm, each) for arm in arms for each in arm.record.published if each.cost is not None]
        for group, arms in study.groups.items()
    }
    if not any(ours.values()):
        return None
    beside = any(printed.values())
    time, factor = time_unit([seconds for points in ours.values() for _, seconds, _ in points])
    groups = [group for group, points in ours.items() if points]
    spoken: list[str] = []

    def paint(axes: Sequence[Any]) -> None:
        step = 2 if beside else 1
        for index, group in enumerate(groups):
            ax = axes[index * step]
            ax.set_title(f"{group_title(group)} (ours)".strip() if beside else group_title(group))
            for arm, seconds, summary in ours[group]:
                number = series[arm.label]
                ax.errorbar(
                    seconds * factor,
                    summary.mean,
                    yerr=summary.std,
                    fmt=MARKERS[number % len(MARKERS)],
                    color=colour(number),
                    ms=6,
                    capsize=2,
                    lw=1,
                )
                spoken.append(f"{arm.name} {summary.mean:.2f} % in {seconds * factor:.3g} {time}")
            ax.set_xlabel(f"{time} per run")
            ax.set_ylabel(f"{metric} (%)")
            ax.margins(0.2)
            ax.set_xlim(left=0)
            if beside:
                right = axes[index * step + 1]
                measured = next((arm.record.published_for for arm, _ in printed[group]), "")
                right.set_title(f"{plain(measured, 40) or group_title(group)} (published)".strip())
                for arm, each in printed[group]:
                    number = series[arm.label]
                    right.errorbar(
                        each.cost,
                        each.mean,
                        yerr=each.std,
                        fmt=MARKERS[number % len(MARKERS)],
                        color=colour(number),
                        mfc=colour(number) if each.source == "paper" else "none",
                        ms=6,
                        capsize=2,
                        lw=1,
                    )
                right.set_xlabel(study.record.cost_unit or "published cost")
                right.margins(0.2)
                right.set_xlim(left=0)
        for ax in axes[len(groups) * step :]:
            ax.set_visible(False)

    shape, size = grid(len(groups) * (2 if beside else 1), columns=2 if beside else 3, panel=(2.5, 2.1))
    svg = draw(prefix, size, shape, paint)
    caption = "Error bars: ± one standard deviation." + (
        " Hollow: quoted by the paper from another one. Times measured on different machines are not comparable."
        * beside
    )
    return PageFigure(
        name="cost",
        title=f"{capital(metric)} against training cost",
        alt=f"Points of {metric} over {time} per run. {speaking(spoken)}.",
        caption=caption,
        svg=svg,
        width=72 * size[0],
        legend=tuple(Key(label=label, series=index, shape="block") for label, index in series.items()),
    )


def overhead(study: StudyResults, prefix: str) -> PageFigure | None:
    """Time of every phase, arm by arm."""
    rows: list[tuple[str, dict[str, float]]] = []
    for arm in study.shown:
        measured = [run.seconds for run in arm.runs if run.seconds is not None]
        if measured:
            means = {phase: sum(each[phase] for each in measured) / len(measured) for phase in PHASES}
            rows.append((arm.name, means))
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
    spoken = [
        f"{label} {sum(means.values()):.1f} s, of which "
        + ", ".join(f"{phase} {100 * means[phase] / max(sum(means.values()), 1e-9):.1f} %" for phase in PHASES)
        for label, means in rows
    ]
    return PageFigure(
        name="overhead",
        title="Overhead",
        alt=f"Bars of the time per run. {speaking(spoken)}.",
        caption="Means over finished runs. Scaling is the time of the method's updates, including branch growth.",
        svg=draw(prefix, size, (1, 1), paint),
        width=72 * size[0],
        legend=tuple(Key(label=phase, series=PHASE_SERIES[phase], shape="block") for phase in PHASES),
    )
