"""What every figure is made of, and how matplotlib's drawing becomes a part of a page.

The drawing keeps its text as text, takes its colours from the page (light, dark, print), and has ids of its own.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from spatialgrad.report.load import Arm, Collected
    from spatialgrad.report.predictions import Examples

SERIES = ("#0072b2", "#d55e00", "#009e73", "#b0509a", "#8a6d00", "#3f9fd8", "#767676", "#882255")
"""Colours that differ for colour-blind readers too; the page has brighter ones for dark."""
INK, FAINT = "#010203", "#c1c2c3"
"""Stand for the page's own colour of text and for that of grid lines."""
NO_DATA = "no data yet"
SVG = "http://www.w3.org/2000/svg"

ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")


@dataclass(frozen=True, kw_only=True)
class Key:
    """An entry of a legend."""

    label: str
    series: int
    """Number of the colour."""
    shape: str = "line"
    """line, dashed or block."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of the page."""

    name: str
    title: str
    alt: str
    """What is to be seen, with the numbers."""
    caption: str = ""
    svg: str = ""
    """Markup that was made here, with everything in it escaped; empty if there is no data yet."""
    width: float = 0.0
    """Natural width of the drawing in points."""
    legend: tuple[Key, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    """For the part of the page that reacts to its reader."""
    examples: tuple[tuple[str, Examples], ...] = ()
    """Pictures, by the name of their arm."""


def draw(
    prefix: str,
    size: tuple[float, float],
    shape: tuple[int, int],
    paint: Callable[[Sequence[Axes]], None],
    **options: Any,
) -> str:
    """Draw axes in a grid, and give the SVG element.

    Args:
        prefix: Of all ids, unique in the page.
        size: Width and height in inches.
        shape: Rows and columns of axes.
        paint: Draws into the axes, which are given row by row.
        **options: For matplotlib's `subplots`.
    """
    import matplotlib
    from matplotlib.figure import Figure as Canvas

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
        # A font without some letter of a name is no reason to speak: the page has its own fonts.
        warnings.simplefilter("ignore")
        canvas = Canvas(figsize=size, layout="constrained")
        axes = canvas.subplots(*shape, squeeze=False, **options)
        paint(list(axes.flat))
        canvas.savefig(
            buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
        )
    return adopt(buffer.getvalue(), prefix)


def adopt(svg: str, prefix: str) -> str:
    """Make a drawing of matplotlib part of a page: ids that are its own, colours and fonts of the page."""
    root = ElementTree.fromstring(svg)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == f"{{{SVG}}}metadata":
                parent.remove(child)
    for element in root.iter():
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
    root.set("aria-hidden", "true")  # the figure around it has the alternative text
    return ElementTree.tostring(root, encoding="unicode")


def grid(
    number: int, *, columns: int = 3, panel: tuple[float, float] = (2.5, 2.0)
) -> tuple[tuple[int, int], tuple[float, float]]:
    """Rows and columns for a number of panels, and the size of all in inches."""
    if number == 1:
        return (1, 1), (5.6, 3.2)
    columns = min(columns, number)
    rows = -(-number // columns)
    # Two beside each other are as wide as three.
    factor = 1.0 if columns > 2 else 1.4
    return (rows, columns), (panel[0] * factor * columns, panel[1] * (1 + factor) / 2 * rows)


def plain(text: str, length: int = 60) -> str:
    """A text for a drawing: one line without control characters, and not too long."""
    line = re.sub(r"[^\S ]+|[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", " ", text)
    return line if len(line) <= length else f"{line[: length - 1]}…"


def series_of(study: Collected) -> dict[str, int]:
    """The colour of every arm's label, the same in all figures of a study."""
    return {label: index for index, label in enumerate(dict.fromkeys(arm.label for arm in study.shown))}


def colour(series: int) -> str:
    """A series' colour as it is drawn."""
    return SERIES[series % len(SERIES)]


def group_title(group: Sequence[str]) -> str:
    """What a panel shows."""
    return plain(" · ".join(group), 40)


def speaking(parts: Sequence[str], most: int = 12) -> str:
    """Parts of a sentence, the first ones if they are many."""
    more = f"; and {len(parts) - most} more" if len(parts) > most else ""
    return "; ".join(parts[:most]) + more


def relevant_runs(arm: Arm) -> list[Any]:
    """The runs that curves show: finished ones; until there are some, those under way."""
    finished = [run for run in arm.runs if run.state == "finished"]
    return finished or [run for run in arm.runs if run.state in ("running", "stopped")] or list(arm.runs)


def _themed(style: str) -> str:
    # Versions of matplotlib differ in whether they write one property or two.
    style = re.sub(r"font: (?:[a-z0-9]+ )*([\d.]+px)[^;]*", r"font-size: \1", style)
    style = re.sub(r"font-family: [^;]*;? ?", "", style)
    style = style.replace(INK, "currentColor").replace(FAINT, "var(--grid)")
    for index, value in enumerate(SERIES):
        style = style.replace(value, f"var(--series-{index})")
    return style
