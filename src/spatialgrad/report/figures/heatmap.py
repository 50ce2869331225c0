"""Matrices as coloured squares with their values, as SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from spatialgrad.report.figures.base import plain
from spatialgrad.report.scalings_log import Matrix

DIVERGING = ("#2166ac", "#f7f7f7", "#b2182b")
"""0 is blue, 1 nearly white, the largest value red."""
SEQUENTIAL = ("#eef4fa", "#6baed6", "#08306b")
BOX, GAP, HEAD, SIDE, MOST_IN_A_ROW = 84, 14, 26, 112, 8
MOST_VALUES = 5
"""Larger matrices show colours only; the page shows their values when a layer is selected."""


@dataclass(frozen=True, kw_only=True)
class HeatRow:
    """A row of matrices."""

    title: str
    matrices: Sequence[Matrix | None]
    largest: float
    """The value with the strongest colour."""
    colour_of: Callable[[float, float], str] = field(default_factory=lambda: diverging)
    """The colour of a value, given the largest one; by default white at 1."""


def heat_rows(rows: Sequence[HeatRow], columns: Sequence[str], *, bold: Sequence[str] = ()) -> tuple[str, float]:
    """Rows of matrices under column names; many columns are split into blocks.

    Args:
        rows: Each with a matrix or None for each column.
        columns: Names of the columns.
        bold: Names to print in bold.

    Returns:
        The SVG element and its width.
    """
    number = -(-len(columns) // MOST_IN_A_ROW)
    length = -(-len(columns) // max(1, number))  # blocks of nearly equal length
    blocks = [range(start, min(start + length, len(columns))) for start in range(0, len(columns), max(1, length))]
    block_height = HEAD + len(rows) * (BOX + GAP)
    width, height = SIDE + max(map(len, blocks), default=0) * (BOX + GAP), len(blocks) * block_height
    parts = [opening(width, height)]
    for number, block in enumerate(blocks):
        top = number * block_height
        for place, index in enumerate(block):
            left = SIDE + place * (BOX + GAP)
            weight = ' font-weight="bold"' if columns[index] in bold else ""
            parts.append(_text(left + BOX / 2, top + 16, _end(columns[index]), 10, "currentColor", more=weight))
            for line, row in enumerate(rows):
                y = top + HEAD + line * (BOX + GAP)
                matrix = row.matrices[index]
                if matrix is None:
                    parts.append(_text(left + BOX / 2, y + BOX / 2 + 4, "–", 12, "currentColor"))
                else:
                    parts += _cells(matrix, left, y, row)
        for line, row in enumerate(rows):
            middle = top + HEAD + line * (BOX + GAP) + BOX / 2
            parts.append(_text(SIDE - 10, middle + 4, plain(row.title, 20), 10.5, "currentColor", "end"))
    return "".join([*parts, "</svg>"]), width


def opening(width: float, height: float) -> str:
    """The opening tag of a drawing, which limits its size on the page."""
    place = f'viewBox="0 0 {width} {height}" style="max-width: {1.35 * width:.0f}px"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {place} aria-hidden="true">'


def diverging(value: float, largest: float) -> str:
    """The colour of a factor: white at 1."""
    low, middle, high = DIVERGING
    if value <= 1:
        return mix(low, middle, max(0.0, value))
    return mix(middle, high, min(1.0, (value - 1) / (largest - 1)))


def sequential(share: float) -> str:
    """The colour of a share from 0 to 1."""
    low, middle, high = SEQUENTIAL
    return mix(low, middle, 2 * share) if share <= 0.5 else mix(middle, high, 2 * share - 1)


def share_colour(value: float, largest: float) -> str:
    """The colour of a value from 0 to the largest one."""
    return sequential(min(1.0, max(0.0, value / largest)))


def mix(a: str, b: str, share: float) -> str:
    """A mixture of two colours."""
    return "#" + "".join(f"{round(x + (y - x) * share):02x}" for x, y in zip(_rgb(a), _rgb(b), strict=True))


def readable_on(colour: str) -> str:
    """Black or white, whichever contrasts more with a colour (always at least 4.5)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in _rgb(colour))]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.179 else "#ffffff"


def scale_of(matrices: Iterable[Matrix | None]) -> float:
    """The value with the strongest red: the largest one, at least 1.5."""
    return max([1.5, *(value for matrix in matrices if matrix is not None for row in matrix for value in row)])


def _cells(matrix: Matrix, left: float, top: float, drawn: HeatRow) -> list[str]:
    height, width = len(matrix), len(matrix[0])
    side = BOX / max(height, width)
    parts = []
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            fill = drawn.colour_of(value, drawn.largest)
            x, y = left + j * side, top + i * side
            parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{side:.1f}" height="{side:.1f}" fill="{fill}"/>')
            if max(height, width) <= MOST_VALUES:
                size = min(9.5, side * 0.38)
                parts.append(_text(x + side / 2, y + side / 2 + size * 0.36, f"{value:.2f}", size, readable_on(fill)))
    edge = f'width="{width * side:.1f}" height="{height * side:.1f}" fill="none" stroke="var(--grid)"'
    parts.append(f'<rect x="{left}" y="{top}" {edge}/>')
    return parts


def _text(x: float, y: float, text: str, size: float, fill: str, anchor: str = "middle", more: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size:.1f}"'
    return f'<text {place} fill="{fill}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _end(name: str) -> str:
    """The end of a qualified name, which is its most specific part."""
    name = plain(name, 200)
    return name if len(name) <= 16 else f"…{name[-15:]}"


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
