"""The picture that the demonstration draws: every layer's scaling at the start and at the end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import TwoSlopeNorm


def draw_scalings(start: Mapping[str, Tensor], end: Mapping[str, Tensor], path: Path) -> Path:
    """Draw every layer's G after the first and after the last update, on one colour scale centred at 1.

    Args:
        start: G of shape (height, width) by layer, after the first update.
        end: The same after the last update, for the same layers.
        path: The PNG file to write; its folder is created.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import TwoSlopeNorm
    from matplotlib.figure import Figure

    largest = max(float(G.max()) for G in (*start.values(), *end.values()))
    # White is 1 (unchanged), blue is below and red is above.
    norm = TwoSlopeNorm(vmin=0, vcenter=1, vmax=max(largest, 1.01))
    figure = Figure(figsize=(1.45 * len(start) + 1.6, 3.9), layout="constrained")
    axes = figure.subplots(2, len(start), squeeze=False)
    for row, (title, scalings) in enumerate((("start", start), ("end", end))):
        for ax, (name, G) in zip(axes[row], scalings.items(), strict=True):
            _draw(ax, G, norm)
            if row == 0:
                ax.set_title(name, fontsize=9)
        axes[row][0].set_ylabel(title, fontsize=10)
    figure.colorbar(ScalarMappable(norm, "RdBu_r"), ax=axes, label="factor on the gradient", shrink=0.8)
    figure.suptitle("Spatial gradient scaling, first to last layer (mean 1)", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def _draw(ax: Axes, G: Tensor, norm: TwoSlopeNorm) -> None:
    ax.imshow(G.cpu().numpy(), norm=norm, cmap="RdBu_r")
    for (i, j), value in zip([(i, j) for i in range(G.shape[0]) for j in range(G.shape[1])], G.flatten(), strict=True):
        shade = abs(norm(float(value)) - 0.5)
        ax.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=7, color="white" if shade > 0.35 else "black")
    ax.set_xticks([])
    ax.set_yticks([])
