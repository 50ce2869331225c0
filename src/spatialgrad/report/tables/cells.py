"""Tables, their cells, and how numbers are formatted in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from spatialgrad.report.results import ArmResults
from spatialgrad.report.statistics import Comparison, Summary
from spatialgrad.studies.study import Published

T = TypeVar("T")

NOTHING = "–"
METRICS = {"miou": "mIoU", "macc": "mAcc", "allacc": "allAcc", "pckh": "PCKh@0.5", "pck": "PCK@0.2"}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell: its text and its sort key."""

    lines: tuple[str, ...]
    sort: float | str | None = None
    """None sorts last."""
    strong: bool = False
    """Whether it is highlighted: a significant difference."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """The header of a column."""

    title: str
    numeric: bool = True
    foldable: bool = False
    """Whether the column moves to the caption if it is the same in every row: settings may, results may not."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells; the first `headers` cells of a row are its header."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    headers: int = 1
    notes: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    """What is the same in every row, as "title: value", for the caption."""

    @property
    def is_grouped(self) -> bool:
        """Whether consecutive rows belong to the same group."""
        return any(row[0].lines == after[0].lines for row, after in zip(self.rows, self.rows[1:], strict=False))


def make_table(
    caption: str,
    headers: Sequence[Column],
    rows: Sequence[tuple[Sequence[str], T]],
    columns: Sequence[tuple[Column, Callable[[T], Cell]]],
    notes: Sequence[str] = (),
) -> Table:
    """A table from the functions that make its cells.

    Args:
        caption: Of the table.
        headers: The columns that say what a row is.
        rows: The texts of the header, and what the other cells are made of.
        columns: The other columns, each with its function.
        notes: Below the table.
    """
    cells = [(*map(text_cell, texts), *(cell_of(row) for _, cell_of in columns)) for texts, row in rows]
    return Table(
        caption=caption,
        columns=(*headers, *(column for column, _ in columns)),
        rows=tuple(cells),
        headers=len(headers),
        notes=tuple(notes),
    )


def arm_table(
    caption: str,
    arms: Sequence[ArmResults],
    columns: Sequence[tuple[Column, Callable[[ArmResults], Cell]]],
    *,
    label: str = "Method",
    notes: Sequence[str] = (),
) -> Table:
    """A table with a row per arm; its group and label are the header, and `label` is the title of the latter."""
    names = group_names(arms)
    headers = [Column(title=name, numeric=False, foldable=True) for name in names]
    rows = [([*(arm.record.group.get(name, NOTHING) for name in names), arm.label], arm) for arm in arms]
    return make_table(caption, [*headers, Column(title=label, numeric=False)], rows, columns, notes)


def group_names(arms: Sequence[ArmResults]) -> list[str]:
    """What the groups of arms are about, such as the data set."""
    return list(dict.fromkeys(name for arm in arms for name in arm.record.group))


def spread(summary: Summary, decimals: int = 2) -> str:
    """Mean ± standard deviation."""
    mean = f"{summary.mean:.{decimals}f}"
    return mean if summary.std is None else f"{mean} ± {summary.std:.{decimals}f}"


def signed(value: float, decimals: int = 2) -> str:
    """A number with its sign, using a typographic minus."""
    return f"{value:+.{decimals}f}".replace("-", "−")


def p_value(p: float) -> str:
    """A p value in the usual format."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def as_printed(value: float) -> str:
    """A published number with its own digits, but at least one decimal."""
    text = f"{value:.10g}"
    return text if "." in text or "e" in text else f"{text}.0"


def interval(comparison: Comparison) -> str:
    """The 95 % interval of a difference: "[−0.20, +0.82]"; empty if there is none."""
    if comparison.low is None or comparison.high is None:
        return ""
    return f"[{signed(comparison.low)}, {signed(comparison.high)}]"


def text_cell(text: str) -> Cell:
    """A text, which is sorted as a number if it is one."""
    try:
        return Cell(lines=(text,), sort=float(text))
    except ValueError:
        return Cell(lines=(text,), sort=text)


def summary_cell(summary: Summary | None) -> Cell:
    """Mean and deviation."""
    return empty() if summary is None else Cell(lines=(spread(summary),), sort=summary.mean)


def number_cell(value: float | None, factor: float, decimals: int) -> Cell:
    """A number, converted to another unit."""
    return empty() if value is None else Cell(lines=(f"{value * factor:,.{decimals}f}",), sort=value)


def scientific_cell(value: float | None) -> Cell:
    """A number that may be very small."""
    return empty() if value is None else Cell(lines=(f"{value:.1e}".replace("-", "−"),), sort=value)


def p_cell(comparison: Comparison | None) -> Cell:
    """The p value of a comparison, uncorrected and corrected."""
    if comparison is None or comparison.p is None or comparison.holm is None:
        return empty()
    return Cell(lines=(p_value(comparison.p), f"Holm {p_value(comparison.holm)}"), sort=comparison.p)


def without_empty_columns(table: Table) -> Table:
    """A table without empty columns."""
    kept = [
        index
        for index in range(len(table.columns))
        if index < table.headers or any(row[index] != empty() for row in table.rows)
    ]
    return _with_columns(table, kept)


def fold_constant_columns(table: Table) -> Table:
    """A table whose foldable columns moved to the caption where all rows have the same value."""
    if len(table.rows) < 2:
        return table
    folded = [
        index
        for index, column in enumerate(table.columns)
        if column.foldable and len({row[index].lines for row in table.rows}) == 1
    ]
    constants = [f"{table.columns[index].title}: {', '.join(table.rows[0][index].lines)}" for index in folded]
    kept = [index for index in range(len(table.columns)) if index not in folded]
    headers = table.headers - sum(index < table.headers for index in folded)
    return replace(_with_columns(table, kept), headers=headers, constants=tuple(constants))


def _with_columns(table: Table, kept: Sequence[int]) -> Table:
    return replace(
        table,
        columns=tuple(table.columns[index] for index in kept),
        rows=tuple(tuple(row[index] for index in kept) for row in table.rows),
    )


def published_cell(values: Sequence[float | None], published: Sequence[Published], after: Sequence[str] = ()) -> Cell:
    """The published values of an arm, one line per source; quoted ones have a star.

    Args:
        values: One per source.
        published: The sources.
        after: Text after each value.
    """
    endings = after or [""] * len(values)
    lines = tuple(
        f"{as_printed(round(value, 6))}{ending}{'' if each.source == 'paper' else '*'}"
        for value, each, ending in zip(values, published, endings, strict=True)
        if value is not None
    )
    return Cell(lines=lines, sort=next(value for value in values if value is not None)) if lines else empty()


def seeds_cell(arm: ArmResults) -> Cell:
    """Number of finished seeds, of those planned."""
    finished, planned = sum(run.state == "finished" for run in arm.runs), len(arm.runs)
    return Cell(lines=(str(planned) if finished == planned else f"{finished} of {planned}",), sort=float(finished))


def empty() -> Cell:
    """An empty cell."""
    return Cell(lines=(NOTHING,))


def arm_notes(arms: Sequence[ArmResults]) -> list[str]:
    """The notes on arms, each once, preceded by the names of the arms it is about."""
    about: dict[str, list[ArmResults]] = {}
    for arm in arms:
        if arm.record.note:
            about.setdefault(arm.record.note, []).append(arm)
    found = []
    for note, noted in about.items():
        labels = {arm.label for arm in noted}
        whole = len(noted) > 1 and len(labels) == 1 and all(a in noted for a in arms if a.label in labels)
        found.append(f"{noted[0].label if whole else ', '.join(arm.name for arm in noted)}: {note}")
    return found


def metric_name(metric: str) -> str:
    """The usual spelling of a metric."""
    return METRICS.get(metric, metric.replace("_", " "))


def capital(text: str) -> str:
    """A text with a capital first letter, unless it has its own spelling."""
    return text[:1].upper() + text[1:] if text.islower() else text
