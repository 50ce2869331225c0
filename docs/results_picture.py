"""The picture of README and docs: gains with their intervals, and what a training step of each method costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from pictures import ACCENT, IMAGES, INK

from spatialgrad.report.statistics import Comparison

MUTED = {"light": "#7b8794", "dark": "#9aa5b1"}


def draw(gains: Sequence[tuple[str, Comparison]], costs: Mapping[str, float]) -> None:
    """Write the picture for light and dark pages, and for the README.

    Args:
        gains: What was compared with plain training, and the comparison.
        costs: Time of a training step by method, in units of a plain one.
    """
    for theme, ink in INK.items():
        style = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), ink)
        more = {"svg.fonttype": "none", "svg.hashsalt": "results", "axes.spines.top": False, "axes.spines.right": False}
        with plt.rc_context({**style, **more}):
            figure = picture(gains, costs, theme)
            figure.savefig(IMAGES / f"results-{theme}.svg", transparent=True, metadata={"Date": None})
            if theme == "light":
                figure.savefig(IMAGES / "results.png", dpi=150, facecolor="white", metadata={"Software": None})
            plt.close(figure)


def picture(gains: Sequence[tuple[str, Comparison]], costs: Mapping[str, float], theme: str) -> Figure:
    """Gains on the left, costs on the right; see `draw`."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9.6, 1.5 + 0.36 * max(len(gains), 4)), layout="constrained", width_ratios=(3, 2)
    )
    for place, (_, each) in enumerate(reversed(gains)):
        if each.low is not None:
            left.plot([each.low, each.high], [place, place], color=ACCENT[theme], lw=2.5, solid_capstyle="butt")
        left.plot(
            each.difference, place, "o", color=ACCENT[theme], ms=7, mfc=ACCENT[theme] if each.supported else "none"
        )
    left.axvline(0, color=INK[theme], lw=0.8)
    left.set_yticks(range(len(gains)), [name for name, _ in reversed(gains)], size=8)
    left.set_ylim(-0.6, len(gains) - 0.4)
    left.set_title("gain of SGS over plain training, points (95 % interval)", size=10)
    colours = [ACCENT[theme] if method == "SGS" else MUTED[theme] for method in costs]
    right.barh(range(len(costs)), list(costs.values()), color=colours, height=0.6)
    for place, ratio in enumerate(costs.values()):
        right.text(ratio + 0.05, place, f"{ratio:.2f} ×", va="center", size=9)
    right.set_yticks(range(len(costs)), list(costs))
    right.invert_yaxis()
    right.axvline(1, color=INK[theme], lw=0.8, ls="--")
    right.set_xlim(0, max(costs.values()) * 1.3)
    right.set_title("time of a training step, plain = 1", size=10)
    return figure
