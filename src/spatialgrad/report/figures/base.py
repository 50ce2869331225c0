"""Figures of a page, and how to embed a matplotlib drawing in it.

An embedded drawing keeps its text as text, uses the page's colours (light, dark, print), and has unique ids.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from xml.etree import ElementTree

from spatialgrad.plot import shorten_name, show_matrix
from spatialgrad.report.results import ArmResults, Matrix, RunResults, StudyResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize

SERIES = ("#0072b2", "#d55e00", "#009e73", "#b0509a", "#8a6d00", "#3f9fd8", "#767676", "#882255")
"""Colours that colour-blind readers can tell apart; the page has brighter ones for dark mode."""
INK, FAINT = "#010203", "#c1c2c3"
"""Placeholders for the page's colours of text and grid lines."""
NO_DATA = "No data yet."
SVG = "http://www.w3.org/2000/svg"
NO_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""Characters that XML cannot hold, but a name may."""
BOX, STEP, HEAD, SIDE, MOST_IN_A_ROW = 0.95, 1.15, 0.3, 1.5, 8
"""Of heat maps: side of a matrix in inches; in units of it, the distance of two, the space above and left of them."""

T = TypeVar("T")

ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")


@dataclass(frozen=True, kw_only=True)
class Key:
    """An entry of a legend."""

    label: str
    series: int
    """Index of the colour."""
    shape: str = "line"
    """line, dashed or block."""


@dataclass(frozen=True, kw_only=True)
class ArmExamples:
    """Example predictions of an arm."""

    name: str
    examples: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    """Caption and pictures, each with its title and the PNG file as a data URI."""
    legend: tuple[tuple[str, str], ...]
    """Class names and their colours."""


@dataclass(frozen=True, kw_only=True)
class HeatRow:
    """A row of matrices with their colour scale."""

    title: str
    matrices: Sequence[Matrix | None]
    norm: Normalize
    colours: Colormap


@dataclass(frozen=True, kw_only=True)
class PageFigure:
    """A figure of the page."""

    name: str
    title: str
    alt: str
    """Alternative text, with the numbers."""
    caption: str = ""
    svg: str = ""
    """Markup with all texts escaped; empty if there is nothing to draw."""
    width: float = 0.0
    """Natural width of the drawing in points."""
    legend: tuple[Key, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    """For the interactive part of the page."""
    examples: tuple[ArmExamples, ...] = ()


def no_data(name: str, title: str, why: str) -> PageFigure:
    """A figure that cannot be drawn, and why."""
    return PageFigure(name=name, title=title, alt=f"{title}: {why[0].lower()}{why[1:]}", caption=why)


def draw(
    prefix: str,
    size: tuple[float, float],
    shape: tuple[int, int],
    paint: Callable[[Sequence[Axes]], None],
    **options: Any,
) -> str:
    """Draw a grid of axes, and return the SVG element.

    Args:
        prefix: Prefix of all ids, unique within the page.
        size: Width and height in inches.
        shape: Rows and columns of axes.
        paint: Draws into the axes, which are passed row by row.
        **options: For matplotlib's `subplots`.
    """
    import matplotlib
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": prefix,
        "text.parse_math": False,  # names are not formulas
        "font.size": 9,
        "axes.titlesize": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": FAINT,
        "grid.linewidth": 0.6,
        "axes.linewidth": 0.8,
        **dict.fromkeys(
            ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"), INK
        ),
    }
    buffer = io.StringIO()
    with matplotlib.rc_context(style), warnings.catch_warnings():
        # matplotlib warns about glyphs missing in its font; the page uses its own fonts.
        warnings.simplefilter("ignore")
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(*shape, squeeze=False, **options)
        paint(list(axes.flat))
        figure.savefig(
            buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
        )
    return adopt(buffer.getvalue(), prefix)


def adopt(svg: str, prefix: str) -> str:
    """Make a matplotlib drawing part of a page: unique ids, the page's colours and fonts."""
    root = ElementTree.fromstring(NO_XML.sub("", svg))
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == f"{{{SVG}}}metadata":
                parent.remove(child)
    seen: set[str] = set()
    for element in root.iter():
        # matplotlib names an image by its content, and so gives equal images the same id.
        if element.get("id") in seen:
            del element.attrib["id"]
        seen.add(element.get("id", ""))
        for name, value in element.attrib.items():
            if name == "id":
                value = f"{prefix}-{value}"
            elif name.endswith("href"):
                value = value.replace("#", f"#{prefix}-", 1)
            elif name == "style":
                value = _themed(value)
            else:
                value = value.replace("url(#", f"url(#{prefix}-")
            element.set(name, value)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("aria-hidden", "true")  # the surrounding figure has the alternative text
    return ElementTree.tostring(root, encoding="unicode")


def draw_heat_rows(
    prefix: str, rows: Sequence[HeatRow], names: Sequence[str], *, title: str = "", bold: Sequence[str] = ()
) -> tuple[str, float]:
    """Rows of matrices under the names of their columns; many columns are split into blocks.

    Args:
        prefix: Prefix of all ids, unique within the page.
        rows: Each with a matrix or None for each column.
        names: Of the columns.
        title: Above the drawing.
        bold: Names to print in bold.

    Returns:
        The SVG element and its width in points.
    """
    blocks = -(-len(names) // MOST_IN_A_ROW)
    length = -(-len(names) // blocks)  # blocks of nearly equal length
    width, height = SIDE + STEP * length, (HEAD + STEP * len(rows)) * blocks
    size = (BOX * width, BOX * height + (0.25 if title else 0))

    def paint(axes: Sequence[Axes]) -> None:
        (ax,) = axes
        ax.set_title(plain(title, 100), loc="left", fontweight="bold")
        for index, name in enumerate(names):
            block, place = divmod(index, length)
            x, top = STEP * place, block * (HEAD + STEP * len(rows))
            weight = "bold" if name in bold else "normal"
            ax.text(x + 0.5, top + HEAD - 0.08, shorten_name(plain(name, 200)), size=7, weight=weight, ha="center")
            for line, row in enumerate(rows):
                y, matrix = top + HEAD + STEP * line, row.matrices[index]
                if matrix is None:
                    ax.text(x + 0.5, y + 0.5, "–", ha="center", va="center")
                else:
                    show_matrix(ax, matrix, row.norm, row.colours, corner=(x, y))
                if place == 0:
                    ax.text(-0.1, y + 0.5, plain(row.title, 20), size=8, ha="right", va="center")
        ax.set(xlim=(-SIDE, width - SIDE), ylim=(height, 0), aspect="equal")
        ax.axis("off")

    return draw(prefix, size, (1, 1), paint), 72 * size[0]


def grid(
    number: int, *, columns: int = 3, panel: tuple[float, float] = (2.5, 2.0)
) -> tuple[tuple[int, int], tuple[float, float]]:
    """Rows and columns for a number of panels, and the total size in inches."""
    if number == 1:
        return (1, 1), (5.6, 3.2)
    columns = min(columns, number)
    rows = -(-number // columns)
    # Two panels are as wide as three.
    factor = 1.0 if columns > 2 else 1.4
    return (rows, columns), (panel[0] * factor * columns, panel[1] * (1 + factor) / 2 * rows)


def evenly(values: Sequence[T], most: int) -> list[T]:
    """At most so many values: the first, the last, and some evenly in between."""
    if len(values) <= most:
        return list(values)
    return [values[round(index * (len(values) - 1) / (most - 1))] for index in range(most)]


def plain(text: str, length: int = 60) -> str:
    """A text for a drawing: one line of limited length."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def series_of(study: StudyResults) -> dict[str, int]:
    """The colour index of every label, the same in all figures of a study."""
    return {label: index for index, label in enumerate(dict.fromkeys(arm.label for arm in study.shown))}


def colour(series: int) -> str:
    """The colour of a series."""
    return SERIES[series % len(SERIES)]


def group_title(group: Sequence[str]) -> str:
    """Title of a panel."""
    return plain(" · ".join(group), 40)


def join_limited(parts: Sequence[str], most: int = 12) -> str:
    """Parts of a sentence joined; only the first ones if there are many."""
    more = f"; and {len(parts) - most} more" if len(parts) > most else ""
    return "; ".join(parts[:most]) + more


def relevant_runs(arm: ArmResults) -> list[RunResults]:
    """The runs that curves show: the finished ones or, until there are any, the unfinished ones."""
    finished = [run for run in arm.runs if run.state == "finished"]
    return finished or [run for run in arm.runs if run.state in ("running", "interrupted")] or list(arm.runs)


def _themed(style: str) -> str:
    # Some versions of matplotlib write `font`, others `font-size` and `font-family`.
    style = re.sub(r"font: (?:[a-z0-9]+ )*?((?:bold|700) )?(?:[a-z0-9]+ )*([\d.]+px)[^;]*", _font, style)
    style = re.sub(r"font-family: [^;]*;? ?", "", style)
    style = style.replace(INK, "currentColor").replace(FAINT, "var(--grid)")
    for index, value in enumerate(SERIES):
        style = style.replace(value, f"var(--series-{index})")
    return style


def _font(found: re.Match[str]) -> str:
    return f"font-size: {found[2]}" + ("; font-weight: 700" if found[1] else "")
