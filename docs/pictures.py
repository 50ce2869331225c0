"""The pictures of the documentation, each for light and dark pages: docs/images/*-light.svg and *-dark.svg.

Those of the method are drawn from the images that come with the package: python docs/pictures.py (needs
spatialgrad[train]). Those of the results are drawn by `make results`.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from spatialgrad import normalized_mutual_information, scaling_from_dependence
from spatialgrad.data import load_dataset
from spatialgrad.plot import readable_on
from spatialgrad.report.figures.base import SERIES
from spatialgrad.report.statistics import Comparison

IMAGES = Path(__file__).parent / "images"
INK = {"light": "#1f2933", "dark": "#e4e7eb"}
ACCENT = {"light": "#c2410c", "dark": "#fdba74"}
BRIGHT = ("#5ab4ee", "#ff9555", "#3ecf9f", "#e593cd", "#dcc04a", "#a9d8f8", "#a5a5a5", "#dd7fae")
"""The colours of series on dark pages."""
MUTED = {"light": "#7b8794", "dark": "#9aa5b1"}
# An image of the training set with structure everywhere, and a pixel on its edge.
EXAMPLE, ROW, COLUMN = 5, 13, 12


def method(theme: str) -> Figure:
    """From an input map to its scaling: a pair of neighbours, their joint histogram, S and G."""
    figure, axes = plt.subplots(1, 4, figsize=(9.6, 2.75), layout="constrained")
    figure.get_layout_engine().set(wspace=0.12)
    _paint_method(*axes)
    return figure


def draw_front(accuracies: Mapping[str, Sequence[float]]) -> None:
    """Draw the method and what it gives, on one picture; as PNG for the README, too.

    Args:
        accuracies: On test images in per cent, one per seed, by way of training.
    """

    def front(theme: str) -> Figure:
        figure, axes = plt.subplots(1, 5, figsize=(12, 2.75), layout="constrained", width_ratios=(1, 1, 1, 1, 1.3))
        figure.get_layout_engine().set(wspace=0.08)
        *parts, result = axes
        _paint_method(*parts)
        for place, (label, values) in enumerate(accuracies.items()):
            colour = ACCENT[theme] if label == "SGS" else MUTED[theme]
            result.plot(values, [place] * len(values), "o", color=colour, ms=6, alpha=0.6, mew=0)
            result.plot([np.mean(values)] * 2, [place - 0.3, place + 0.3], color=colour, lw=2.5)
        result.set_yticks(range(len(accuracies)), list(accuracies))
        result.set_ylim(len(accuracies) - 0.5, -0.5)
        result.set(
            title="CIFAR-100, test accuracy (%)",
            xlabel="VGG-11 of ¼ width, 60 epochs,\n20,000 images; a point per seed",
        )
        result.spines[["top", "right"]].set_visible(False)
        return figure

    _save(front, METHOD_STYLE, png=True)


def _paint_method(image: Axes, histogram: Axes, dependence: Axes, scaling: Axes) -> None:
    maps = load_dataset("fashion-mnist-mini").train.images[:256] / 255
    S = normalized_mutual_information(maps, 3, padding=1)
    G = scaling_from_dependence(S, k=5)
    image.imshow(maps[EXAMPLE, 0].numpy(), cmap="gray")
    for column, letter, side in ((COLUMN, "P", "right"), (COLUMN + 1, "Q", "left")):
        image.add_patch(Rectangle((column - 0.5, ROW - 0.5), 1, 1, fill=False, color=ACCENT["light"], linewidth=2))
        shift = -1.2 if side == "right" else 1.2
        image.text(column + shift, ROW, letter, color=ACCENT["light"], ha=side, va="center", weight="bold", size=13)
    image.set_title("the input map of a layer")
    image.set_xlabel("pixel P and its neighbour Q")

    p, q = maps[:, 0, :, :-1].flatten().numpy(), maps[:, 0, :, 1:].flatten().numpy()
    counts, _, _ = np.histogram2d(p, q, bins=19, range=((0, 1), (0, 1)))
    histogram.imshow(counts.T, origin="lower", norm=LogNorm(vmin=1), cmap="viridis", extent=(0, 1, 0, 1))
    histogram.set(xticks=[], yticks=[], ylabel="Q", title="their joint histogram")
    histogram.set_xlabel(f"P\nnormalized mutual information {S[0, 1, 2]:.2f}")

    _matrix(dependence, S[0], "viridis", mpl.colors.Normalize(0, 1))
    dependence.set_title("dependence S")
    dependence.set_xlabel("one value for each neighbour")
    _matrix(scaling, G, "RdBu_r", TwoSlopeNorm(1, 0, 2))
    scaling.set_title("scaling G")
    scaling.set_xlabel("k = 5, mean 1: multiplies\nthe gradient of the kernel")
    for axes in (image, dependence, scaling):
        axes.set(xticks=[], yticks=[])


def transform(theme: str) -> Figure:
    """What k does to S, with the example of the page marked."""
    figure, axes = plt.subplots(figsize=(4.4, 2.9), layout="constrained")
    S = np.linspace(0, 1, 201)
    for k, style in ((1, ":"), (2, "--"), (5, "-"), (10, "-.")):
        axes.plot(S, k * S / ((k - 1) * S + 1), style, label=f"k = {k}", color=ACCENT[theme] if k == 5 else INK[theme])
    value = 5 * 0.1 / (4 * 0.1 + 1)
    line = {"arrowstyle": "-", "color": ACCENT[theme], "linewidth": 0.8}
    axes.plot([0.1], [value], "o", color=ACCENT[theme])
    axes.annotate(f"0.10 → {value:.2f}", (0.11, value - 0.01), (0.36, 0.1), color=ACCENT[theme], arrowprops=line)
    axes.set(xlabel="dependence S", ylabel="G before it is divided by its mean", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_results(gains: Sequence[tuple[str, Comparison]], costs: Mapping[str, float]) -> None:
    """Draw gains with their intervals, and what a training step of each method costs.

    Args:
        gains: What was compared with plain training, and the comparison.
        costs: Time of a training step by method, in units of a plain one.
    """

    def results(theme: str) -> Figure:
        heights = [1 + 0.4 * len(gains), 0.6 + 0.27 * len(costs)]
        figure, (upper, lower) = plt.subplots(
            2, 1, figsize=(5.8, sum(heights)), layout="constrained", height_ratios=heights
        )
        for place, (_, each) in enumerate(reversed(gains)):
            if each.low is not None:
                upper.plot([each.low, each.high], [place, place], color=ACCENT[theme], lw=2.5, solid_capstyle="butt")
            face = ACCENT[theme] if each.supported else "none"
            upper.plot(each.difference, place, "o", color=ACCENT[theme], ms=7, mfc=face)
        upper.axvline(0, color=INK[theme], lw=0.8)
        upper.set_yticks(range(len(gains)), [name for name, _ in reversed(gains)], size=8)
        upper.set_ylim(-0.6, len(gains) - 0.4)
        upper.set_title("gain of SGS, points (95 % interval)", size=10)
        colours = [ACCENT[theme] if method == "SGS" else MUTED[theme] for method in costs]
        lower.barh(range(len(costs)), list(costs.values()), color=colours, height=0.6)
        for place, ratio in enumerate(costs.values()):
            lower.text(ratio + 0.05, place, f"{ratio:.2f} ×", va="center", size=9)
        lower.set_yticks(range(len(costs)), list(costs))
        lower.invert_yaxis()
        lower.axvline(1, color=INK[theme], lw=0.8, ls="--")
        lower.set_xlim(0, max(costs.values()) * 1.3)
        lower.set_title("time of a training step, plain = 1", size=10)
        return figure

    _save(results, RESULTS_STYLE)


def draw_fit(points: Sequence[tuple[str, float, Comparison]]) -> None:
    """Draw gains over the accuracy of plain training on its training images, one point per comparison.

    Args:
        points: Data set, accuracy of plain training on training images at the end in per cent, and the comparison.
    """
    datasets = list(dict.fromkeys(dataset for dataset, _, _ in points))

    def fit(theme: str) -> Figure:
        figure, ax = plt.subplots(figsize=(5.8, 4.2), layout="constrained")
        ax.axhline(0, color=INK[theme], lw=0.8)
        hues = dict(zip(datasets, cycle(SERIES if theme == "light" else BRIGHT), strict=False))
        for dataset, training, comparison in points:
            _point(ax, training, comparison, hues[dataset])
        for dataset, hue in hues.items():
            ax.plot([], [], "o", color=hue, label=dataset)
        ax.set(xlabel="accuracy of plain training on its training images (%)", ylabel="gain (points, 95 % interval)")
        figure.legend(frameon=False, fontsize=9, loc="outside lower center", ncols=3)
        return figure

    _save(fit, RESULTS_STYLE)


def draw_length(lengths: Sequence[tuple[int, Comparison, float, float]]) -> None:
    """Draw the gain, and the accuracy on training images, over the number of epochs.

    Args:
        lengths: Epochs, the comparison with plain training, and the accuracy on training images in per cent of plain
            training and of scaling.
    """
    epochs, comparisons, *training = zip(*lengths, strict=True)

    def length(theme: str) -> Figure:
        figure, (left, right) = plt.subplots(1, 2, figsize=(5.8, 2.7), layout="constrained")
        left.axhline(0, color=INK[theme], lw=0.8)
        for number, comparison in zip(epochs, comparisons, strict=True):
            _point(left, number, comparison, ACCENT[theme])
        left.set(ylabel="gain (points, 95 % interval)")
        for values, label, colour in zip(training, ("plain", "SGS"), (MUTED[theme], ACCENT[theme]), strict=True):
            right.plot(epochs, values, "o-", color=colour, label=label)
        right.set(ylabel="accuracy on training images (%)")
        right.legend(frameon=False)
        for ax in (left, right):
            ax.set_xscale("log", base=2)
            ax.set_xticks(epochs, [str(number) for number in epochs])
            ax.set(xlabel="epochs", xlim=(epochs[0] / 1.2, epochs[-1] * 1.2))
        return figure

    _save(length, RESULTS_STYLE)


def _point(ax: Axes, x: float, comparison: Comparison, hue: str) -> None:
    """A difference with its interval; filled if it is significant."""
    if comparison.low is not None:
        ax.plot([x, x], [comparison.low, comparison.high], color=hue, lw=1.5, alpha=0.6)
    ax.plot(x, comparison.difference, "o", color=hue, ms=5.5, mfc=hue if comparison.supported else "none")


def _matrix(axes: Axes, values: torch.Tensor, cmap: str, norm: mpl.colors.Normalize) -> None:
    """A heat map with its numbers in it, in black or white, whichever can be read."""
    drawn = axes.imshow(values.numpy(), cmap=cmap, norm=norm)
    for (row, column), value in np.ndenumerate(values.numpy()):
        ink = readable_on(drawn.cmap(drawn.norm(value)))
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=ink, size=12)


RESULTS_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "results",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
METHOD_STYLE = {"svg.fonttype": "path", "svg.hashsalt": "spatialgrad", "font.size": 10, "axes.titlesize": 11}


def _save(draw: Callable[[str], Figure], style: Mapping[str, object], *, png: bool = False) -> None:
    """Write the picture that a function draws for a theme; the same file from the same data: no date, no random ids."""
    for theme, ink in INK.items():
        colors = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), ink)
        with mpl.rc_context({**colors, **style}):
            figure = draw(theme)
            figure.savefig(IMAGES / f"{draw.__name__}-{theme}.svg", transparent=True, metadata={"Date": None})
            if png and theme == "light":
                path = IMAGES / f"{draw.__name__}.png"
                figure.savefig(path, dpi=150, facecolor="white", metadata={"Software": None})
            plt.close(figure)


def main() -> None:
    """Draw the pictures of the method."""
    for draw in (method, transform):
        _save(draw, METHOD_STYLE)


if __name__ == "__main__":
    main()
