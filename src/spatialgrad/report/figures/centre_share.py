"""How centre-focused scalings are, over depth and time: the paper's observations as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spatialgrad.report.figures.base import Key, PageFigure, colour, draw, plain, speaking
from spatialgrad.report.figures.layers import THIRDS, mean_by_third, one_per_arm, positions, runs_by_seed
from spatialgrad.report.results import StudyResults
from spatialgrad.report.scalings_log import Matrix, Scalings
from spatialgrad.report.statistics import rank_correlation
from spatialgrad.report.tables.cells import signed

SMALLEST_CHANGE = 0.05
"""Changes of the mean share below this many points are called none."""


def centre_share(study: StudyResults, prefix: str) -> PageFigure | None:
    """The share of the centre in G over depth, at the first and the last update, and over time; one seed per arm."""
    shown = [(arm, run.scalings.read()) for arm, run in one_per_arm(runs_by_seed(study))]
    if not shown:
        return None

    def paint(axes: Sequence[Any]) -> None:
        for number, (arm, updates) in enumerate(shown):
            left, right = axes[2 * number : 2 * number + 2]
            left.set_title(plain(arm.name, 40))
            for update, style in ((updates[0], "--"), (updates[-1], "o-")):
                shares = list(centre_shares(update).values())
                left.plot(range(1, len(shares) + 1), shares, style, color=colour(0), ms=3.5, lw=1.4)
            left.set_xlabel("layer")
            left.set_ylabel("share of the centre (%)")
            for index, name in enumerate(THIRDS):
                points = [
                    (update.epoch, means[name])
                    for update in updates
                    if name in (means := mean_by_third(centre_shares(update)))
                ]
                if points:
                    right.plot(*zip(*points, strict=True), "o-", color=colour(2 + index), ms=3, lw=1.4)
            right.set_xlabel("epoch")
            for ax in (left, right):
                ax.xaxis.get_major_locator().set_params(integer=True)

    size = (7.0, 2.5 * len(shown))
    found = [f"{arm.name}: {observed(updates)}" for arm, updates in shown]
    return PageFigure(
        name="centre-share",
        title="Focus of the scalings on the centre",
        alt=f"Curves of the share of the centre in G over depth and over epochs. {speaking(found)}.",
        caption="Share of the centre in the sum of G over the central 3×3 positions; a uniform G has 11.1 %. Left: "
        "over depth; solid: last update, dashed: first. Right: over time, mean over the early, middle and late third "
        f"of the layers. One seed per arm. {speaking(found)}.",
        svg=draw(prefix, size, (len(shown), 2), paint),
        width=72 * size[0],
        legend=(
            Key(label="all layers", series=0),
            *(Key(label=name, series=2 + index) for index, name in enumerate(THIRDS)),
        ),
    )


def share_of_centre(G: Matrix) -> float:
    """The share of the centre in the sum over the central 3×3 positions, in per cent, for kernels of any size."""
    near = {(i, j): value for i, j, value in positions(G) if abs(i) <= 1 and abs(j) <= 1}
    total = sum(near.values())
    return 100 * near[0, 0] / total if total else 0.0


def centre_shares(update: Scalings) -> dict[str, float]:
    """The share of the centre by layer, from first to last."""
    return {name: share_of_centre(G) for name, G in update.layers.items()}


def observed(updates: Sequence[Scalings]) -> str:
    """What the scalings of a run show: whether deeper layers are more centre-focused, and what training changes."""
    first, last = (list(centre_shares(update).values()) for update in (updates[0], updates[-1]))
    correlation = rank_correlation(range(len(last)), last)
    if correlation is None:
        depth = "too few layers to tell whether depth matters"
    else:
        word = "more" if correlation > 0 else "less"
        depth = f"deeper layers are {word} centre-focused (rank correlation of depth and share {signed(correlation)})"
    before, after = sum(first) / len(first), sum(last) / len(last)
    change = after - before
    word = "no change" if abs(change) < SMALLEST_CHANGE else "more centre-focused" if change > 0 else "smoother"
    return f"{depth}; mean share {before:.1f} % at the first and {after:.1f} % at the last update: {word}"
