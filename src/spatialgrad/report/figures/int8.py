"""INT8: the change by quantization, beside the range of the weights of every layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spatialgrad.report.figures.base import INK, Key, PageFigure, colour, draw, join_limited, plain, series_of
from spatialgrad.report.results import StudyResults
from spatialgrad.report.tables.cells import metric_name, signed
from spatialgrad.report.tables.int8 import int8_changes, weight_ranges

ROW = 0.3
"""Height of a row in inches."""


def change_in_int8(study: StudyResults, prefix: str) -> PageFigure | None:
    """The change of the metric by quantization, and how far weights range from layer to layer."""
    arms = [arm for arm in study.shown if weight_ranges(arm)]
    if not arms:
        return None
    series, changes = series_of(study), [int8_changes(study, arm) for arm in arms]

    def paint(axes: Sequence[Any]) -> None:
        left, right = axes
        left.axvline(0, color=INK, lw=0.8)
        for place, (arm, found) in enumerate(zip(arms, changes, strict=True)):
            hue = colour(series[arm.label])
            for offset, hollow, change in zip((0.12, -0.12), (False, True), found.values(), strict=True):
                if change is None:
                    continue
                y = len(arms) - 1 - place + offset
                if change.low is not None and change.high is not None:
                    left.plot([change.low, change.high], [y, y], color=hue, lw=1.5)
                left.plot(change.difference, y, "o", color=hue, ms=5, mfc="none" if hollow else hue)
            right.plot(range(1, 1 + len(ranges := weight_ranges(arm))), ranges.values(), "o-", color=hue, ms=3, lw=1.2)
        left.set_yticks(range(len(arms)), [plain(arm.name, 32) for arm in reversed(arms)])
        left.grid(axis="y", visible=False)
        left.set_xlabel(f"change in {metric_name(study.record.metric)} in INT8 (points)")
        right.set(xlabel="layer", ylabel="largest weight / standard deviation", ylim=(0, None))

    described = [
        f"{arm.name} {' and '.join(signed(change.difference) for change in found.values() if change is not None)}"
        for arm, found in zip(arms, changes, strict=True)
    ]
    return PageFigure(
        name="int8",
        title="INT8",
        alt=f"Changes in INT8, with one scale per channel and per layer: {join_limited(described)}.",
        caption="Left: filled with one scale per output channel, hollow with one per layer; 95 % confidence intervals "
        "of the mean difference from the same network in float. Right: how far the weights of each layer range.",
        svg=draw(prefix, (8.2, 1.4 + ROW * len(arms)), (1, 2), paint),
        width=8.2 * 72,
        legend=tuple(Key(label=arm.label, series=series[arm.label], shape="block") for arm in arms),
    )
