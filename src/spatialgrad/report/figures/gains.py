"""The difference of every arm from its reference, with its 95 % interval: as points, and as a map of two numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spatialgrad.report.figures.base import INK, Key, PageFigure, colour, draw, join_limited, plain, series_of
from spatialgrad.report.results import ArmResults, StudyResults
from spatialgrad.report.statistics import Comparison
from spatialgrad.report.tables.cells import metric_name, signed
from spatialgrad.report.tables.results import compared_arms

ROW = 0.3
"""Height of a row in inches."""
MAP_COLOURS = "RdBu"
PAIRED = "Differences are paired by seed; intervals are 95 % confidence intervals of the mean difference."


def gains(study: StudyResults, prefix: str) -> PageFigure | None:
    """The difference of every arm from its reference, one row each."""
    rows = _compared(study)
    if not rows:
        return None
    series = series_of(study)
    several = len({arm.label for arm, _ in rows}) > 1
    labels = [plain(arm.name if several else " · ".join(arm.group) or arm.label, 48) for arm, _ in rows]

    def paint(axes: Sequence[Any]) -> None:
        ax = axes[0]
        ax.axvline(0, color=INK, lw=0.8)
        for place, (arm, comparison) in enumerate(rows):
            hue, y = colour(series[arm.label]), len(rows) - 1 - place
            if comparison.low is not None and comparison.high is not None:
                ax.plot([comparison.low, comparison.high], [y, y], color=hue, lw=2, solid_capstyle="butt")
            ax.plot(comparison.difference, y, "o", color=hue, ms=6, mfc=hue if comparison.supported else "none")
        ax.set_yticks(range(len(rows)), labels[::-1])
        ax.set_ylim(-0.6, len(rows) - 0.4)
        ax.grid(axis="y", visible=False)
        ax.set_xlabel(f"difference in {metric_name(study.record.metric)} (points)")

    described = [f"{label} {_described(comparison)}" for label, (_, comparison) in zip(labels, rows, strict=True)]
    return PageFigure(
        name="gains",
        title="Differences",
        alt=f"Differences with their 95 % intervals: {join_limited(described)}.",
        caption=f"{PAIRED} A filled point is significant after Holm's correction for all comparisons of the study.",
        svg=draw(prefix, (6.4, 0.9 + ROW * len(rows)), (1, 1), paint),
        width=6.4 * 72,
        legend=tuple(Key(label=label, series=series[label], shape="block")
                     for label in dict.fromkeys(arm.label for arm, _ in rows)) if several else (),
    )  # fmt: skip


def gain_map(study: StudyResults, prefix: str) -> PageFigure | None:
    """The differences as a map: the groups' first number down, their second one across."""
    found = [(arm, comparison) for arm, comparison in _compared(study) if len(arm.group) == 2]
    if not found:
        return None
    names = list(found[0][0].record.group)
    rows = sorted({arm.group[0] for arm, _ in found}, key=_number)
    columns = sorted({arm.group[1] for arm, _ in found}, key=_number)
    largest = max(0.1, *(abs(comparison.difference) for _, comparison in found))

    def paint(axes: Sequence[Any]) -> None:
        from matplotlib import colormaps

        ax, shades = axes[0], colormaps[MAP_COLOURS]
        for arm, comparison in found:
            x, y = columns.index(arm.group[1]), rows.index(arm.group[0])
            shade = shades(0.5 + 0.38 * comparison.difference / largest)
            ax.fill_between([x - 0.48, x + 0.48], y - 0.46, y + 0.46, color=shade, lw=0)
            weight = "bold" if comparison.supported else "normal"
            # Black is readable on all shades that are used: the strongest ones are left out.
            ax.text(x, y + 0.12, signed(comparison.difference), ha="center", color="#111111", weight=weight)
            ax.text(x, y - 0.2, _interval(comparison), ha="center", color="#111111", size=7.5)
        ax.set_xticks(range(len(columns)), columns)
        ax.set_yticks(range(len(rows)), rows)
        ax.set_xlabel(plain(names[1]).lower())
        ax.set_ylabel(plain(names[0]).lower())
        ax.grid(visible=False)

    described = [f"{' × '.join(arm.group)}: {_described(comparison)}" for arm, comparison in found]
    return PageFigure(
        name="gain-map",
        title=f"Difference by {names[0].lower()} and {names[1].lower()}",
        alt=f"Differences in points by {' and '.join(names).lower()}: {join_limited(described)}.",
        caption=f"Differences in {metric_name(study.record.metric)}, in points. {PAIRED} Bold: significant after "
        "Holm's correction for all comparisons of the study.",
        svg=draw(prefix, (1.2 + 1.5 * len(columns), 0.9 + 0.75 * len(rows)), (1, 1), paint),
        width=(1.2 + 1.5 * len(columns)) * 72,
    )


def _compared(study: StudyResults) -> list[tuple[ArmResults, Comparison]]:
    return [(arm, comparison) for arm, comparison in compared_arms(study) if comparison is not None]


def _described(comparison: Comparison) -> str:
    interval = f" ({text})" if (text := _interval(comparison)) else ""
    return signed(comparison.difference) + interval + (", significant" if comparison.supported else "")


def _interval(comparison: Comparison) -> str:
    if comparison.low is None or comparison.high is None:
        return ""
    return f"{signed(comparison.low)} to {signed(comparison.high)}"


def _number(text: str) -> tuple[float, str]:
    """Sorts "2,000" before "32,000", and texts without a number last."""
    try:
        return float(text.replace(",", "")), text
    except ValueError:
        return float("inf"), text
