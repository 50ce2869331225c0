"""Pictures of scalings. matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure
    from torch import Tensor

LOW, NEUTRAL, HIGH = "#2166ac", "#f7f7f7", "#b2182b"
"""Colours of a factor of 0, of 1 and of the largest one."""
SMALLEST_RANGE = 1.5
"""The factor with the strongest colour is at least this."""
LARGEST_KERNEL = 5
"""Larger kernels are drawn without their values."""
MOST_COLUMNS = 8


def plot_scalings(scalings: Mapping[str, Tensor | Sequence[Any]], *, columns: int = MOST_COLUMNS) -> Figure:
    """Draw every G as a small heat map, in the order of the layers.

    White (1) leaves the gradient as it is, blue is smaller, red is larger; below each map is the share of the centre
    (see `centre_share`).

    Args:
        scalings: G by qualified name, as `SpatialGradientScaling.scalings` has them.
        columns: Number of maps in a row.

    Returns:
        The figure: `figure.savefig("scalings.png")`.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If there are no scalings.

    Example:
        plot_scalings(sgs.scalings).savefig("scalings.png")
    """
    if not scalings:
        raise ValueError("there are no scalings to plot: the dict is empty. Call update(loader) first")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot_scalings needs matplotlib: pip install matplotlib, or 'spatialgrad[train]'") from error
    matrices = {name: as_matrix(G) for name, G in scalings.items()}
    columns = min(columns, len(matrices))
    rows = -(-len(matrices) // columns)
    norm, colours = scaling_colours(matrices.values())
    figure = Figure(figsize=(0.6 + 1.15 * columns, 0.2 + 1.55 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat:
        ax.axis("off")
    for ax, (name, G) in zip(axes.flat, matrices.items(), strict=False):
        show_matrix(ax, G, norm, colours)
        ax.set_title(shorten_name(name), fontsize=7)
        ax.text(
            0.5, -0.06, f"centre {centre_share(G):.0f} %", fontsize=7, ha="center", va="top", transform=ax.transAxes
        )
    return figure


def centre_share(G: Any) -> float:
    """The share of the centre in the sum over the central 3×3 positions, in per cent; a uniform G has 11.1.

    Larger kernels have the same scale in this way.
    """
    G = as_matrix(G)
    row, column = G.shape[0] // 2, G.shape[1] // 2
    near = G[max(0, row - 1) : row + 2, max(0, column - 1) : column + 2]
    total = float(near.sum())
    return 100 * float(G[row, column]) / total if total else 0.0


def as_matrix(G: Any) -> np.ndarray:
    """A G of any kernel as a matrix: that of a 1-d kernel is one row, of a 3-d kernel the middle slice is taken."""
    values = np.asarray(G.detach().cpu() if hasattr(G, "detach") else G, dtype=float)
    values = np.atleast_2d(values)
    return values[values.shape[0] // 2] if values.ndim == 3 else values


def scaling_colours(matrices: Any) -> tuple[Normalize, Colormap]:
    """The colour scale of factors: white at 1."""
    from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm

    largest = max([SMALLEST_RANGE, *(float(np.asarray(G).max()) for G in matrices if G is not None)])
    return TwoSlopeNorm(1, 0, largest), LinearSegmentedColormap.from_list("scaling", (LOW, NEUTRAL, HIGH))


def show_matrix(
    ax: Axes, values: Any, norm: Normalize, colours: Colormap, *, corner: tuple[float, float] | None = None
) -> None:
    """Draw a matrix as coloured squares with their values.

    Args:
        ax: Where to draw.
        values: The matrix.
        norm: Of the colour scale.
        colours: The colour scale.
        corner: Upper left corner of a square with side 1 into which the matrix is drawn; by default the axes show
            nothing else.
    """
    values = np.asarray(values, dtype=float)
    height, width = values.shape
    side = 1 / max(height, width) if corner is not None else 1.0
    x, y = corner if corner is not None else (-0.5, -0.5)
    extent = (x, x + side * width, y + side * height, y)
    # Without interpolation, a vector file holds one pixel per value.
    ax.imshow(values, cmap=colours, norm=norm, extent=extent, interpolation="none")
    if max(height, width) > LARGEST_KERNEL:
        return
    for (i, j), value in np.ndenumerate(values):
        ax.text(
            x + side * (j + 0.5),
            y + side * (i + 0.5),
            f"{value:.2f}",
            fontsize=29 / (max(height, width) + 1),
            ha="center",
            va="center",
            color=readable_on(colours(norm(value))),
            clip_on=True,  # so that the layout need not measure it
        )


def readable_on(colour: Sequence[float]) -> str:
    """Black or white, whichever has more contrast with a colour (always at least 4.5).

    Args:
        colour: Red, green and blue from 0 to 1.
    """
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.179 else "#ffffff"


def shorten_name(name: str, length: int = 16) -> str:
    """The end of a qualified name, which is its most specific part."""
    return name if len(name) <= length else f"…{name[1 - length :]}"
