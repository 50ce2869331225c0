"""Look at scalings: a table for terminals and notebooks, and numbers for a tracker."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping

from torch import Tensor

from spatialgrad.plot import centre_share
from spatialgrad.sgs.layers import ScaledLayer

COLUMNS = ("layer", "kernel", "centre", "updates", "next update")


def kernel_matrix(layer: ScaledLayer) -> Tensor:
    """Return the G of a layer in the shape of its kernel; averaged if every element of the weight has its own."""
    scaling = layer.scaling
    return scaling if scaling.dim() == len(layer.kernel_size) else scaling.mean((0, 1))


def summary(layers: Iterable[ScaledLayer], num_updates: int) -> dict[str, float]:
    """Return the number of updates, and the share of each centre in per cent; see `centre_share`."""
    centres = {f"spatialgrad/centre/{layer.name}": centre_share(kernel_matrix(layer)) for layer in layers}
    return {"spatialgrad/updates": float(num_updates), **centres}


def text_table(title: str, layers: Iterable[ScaledLayer], next_updates: Mapping[str, str]) -> str:
    """Return a table with aligned columns."""
    lines = [COLUMNS, *_rows(layers, next_updates)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join([title, *(line.rstrip() for line in padded)])


def html_table(title: str, layers: Iterable[ScaledLayer], next_updates: Mapping[str, str]) -> str:
    """Return the same table for a notebook."""
    lines = [(COLUMNS, "th"), *((row, "td") for row in _rows(layers, next_updates))]
    cells = ["".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in line) for line, tag in lines]
    return f"<p>{html.escape(title)}</p><table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _rows(layers: Iterable[ScaledLayer], next_updates: Mapping[str, str]) -> list[tuple[str, ...]]:
    return [
        (
            layer.name or "(the model)",
            "×".join(map(str, layer.kernel_size)),
            f"{centre_share(kernel_matrix(layer)):.1f} %",
            str(layer.num_updates),
            next_updates.get(layer.name, "detached"),
        )
        for layer in layers
    ]
