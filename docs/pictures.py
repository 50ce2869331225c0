"""Draw the pictures of the documentation from the images that come with the package.

Run: python docs/pictures.py (needs spatialgrad[train]); writes docs/images/*-light.svg and *-dark.svg.
"""

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

IMAGES = Path(__file__).parent / "images"
INK = {"light": "#1f2933", "dark": "#e4e7eb"}
ACCENT = {"light": "#c2410c", "dark": "#fdba74"}
# An image of the training set with structure everywhere, and a pixel on its edge.
EXAMPLE, ROW, COLUMN = 5, 13, 12


def method(theme: str) -> Figure:
    """From an input map to its scaling: a pair of neighbours, their joint histogram, S and G."""
    maps = load_dataset("fashion-mnist-mini").train.images[:256] / 255
    S = normalized_mutual_information(maps, 3, padding=1)
    G = scaling_from_dependence(S, k=5)
    figure, (image, histogram, dependence, scaling) = plt.subplots(1, 4, figsize=(9.6, 2.75), layout="constrained")
    figure.get_layout_engine().set(wspace=0.12)

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
    return figure


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


def _matrix(axes: Axes, values: torch.Tensor, cmap: str, norm: mpl.colors.Normalize) -> None:
    """A heat map with its numbers in it, in black or white, whichever can be read."""
    drawn = axes.imshow(values.numpy(), cmap=cmap, norm=norm)
    for (row, column), value in np.ndenumerate(values.numpy()):
        red, green, blue, _ = drawn.cmap(drawn.norm(value))
        ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=ink, size=12)


def main() -> None:
    """Draw every picture for a light and for a dark page."""
    for theme, ink in INK.items():
        colors = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), ink)
        # The same file from the same data: no date, no random ids.
        fixed = {"svg.hashsalt": "spatialgrad", "svg.fonttype": "path", "font.size": 10, "axes.titlesize": 11}
        with mpl.rc_context({**colors, **fixed}):
            for draw in (method, transform):
                figure = draw(theme)
                figure.savefig(IMAGES / f"{draw.__name__}-{theme}.svg", transparent=True, metadata={"Date": None})
                plt.close(figure)


if __name__ == "__main__":
    main()
