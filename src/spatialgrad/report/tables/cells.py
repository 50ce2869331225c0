"""Tables, their cells, and how numbers are formatted in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spatialgrad.report.results import ArmResults
from spatialgrad.report.statistics import Comparison, Summary
from spatialgrad.studies.study import Published

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


def number_cell(value: float | None, factor: float, decimals: int) -> Cell:
    """A number, converted to another unit."""
    return empty() if value is None else Cell(lines=(f"{value * factor:,.{decimals}f}",), sort=value)


def scientific_cell(value: float | None) -> Cell:
    """A number that may be very small."""
    return empty() if value is None else Cell(lines=(f"{value:.1e}".replace("-", "−"),), sort=value)


def p_cell(comparison: Comparison) -> Cell:
    """The p value of a comparison, uncorrected and corrected."""
    if comparison.p is None or comparison.holm is None:
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


def heading_cells(arm: ArmResults, names: Sequence[str]) -> tuple[Cell, ...]:
    """The header of a row: the arm's group and label."""
    group = [arm.record.group.get(name, NOTHING) for name in names]
    return tuple(Cell(lines=(text,), sort=sortable(text)) for text in (*group, arm.label))


def heading_columns(names: Sequence[str], last: str) -> tuple[Column, ...]:
    """The columns of `heading_cells`."""
    groups = [Column(title=name, numeric=False, foldable=True) for name in names]
    return (*groups, Column(title=last, numeric=False))


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


def group_names(arms: Sequence[ArmResults]) -> list[str]:
    """The columns of the groups."""
    return list(dict.fromkeys(name for arm in arms for name in arm.record.group))


def metric_name(metric: str) -> str:
    """The usual spelling of a metric."""
    return METRICS.get(metric, metric.replace("_", " "))


def capital(text: str) -> str:
    """A text with a capital first letter, unless it has its own spelling."""
    return text[:1].upper() + text[1:] if text.islower() else text


def sortable(text: str) -> float | str:
    """A text as a sort key: a number if it is one."""
    try:
        return float(text)
    except ValueError:
        return text
