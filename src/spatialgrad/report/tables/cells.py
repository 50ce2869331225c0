"""The model of a table, its cells, and how numbers are written in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spatialgrad.report.load import Arm
from spatialgrad.report.statistics import Comparison, Summary
from spatialgrad.studies.study import Published

NOTHING = "–"
METRICS = {"miou": "mIoU", "macc": "mAcc", "allacc": "allAcc", "pckh": "PCKh@0.5", "pck": "PCK@0.2"}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell: what it says, and what it is sorted by."""

    lines: tuple[str, ...]
    sort: float | str | None = None
    """None sorts last."""
    strong: bool = False
    """Whether it stands out: a difference that the test supports."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column's head."""

    title: str
    numeric: bool = True


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells under columns; the first `headers` cells of a row say what the row is."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    headers: int = 1
    notes: tuple[str, ...] = ()

    @property
    def is_grouped(self) -> bool:
        """Whether rows that follow each other belong together."""
        return any(row[0].lines == after[0].lines for row, after in zip(self.rows, self.rows[1:], strict=False))


def spread(summary: Summary, decimals: int = 2) -> str:
    """Mean ± standard deviation."""
    mean = f"{summary.mean:.{decimals}f}"
    return mean if summary.std is None else f"{mean} ± {summary.std:.{decimals}f}"


def signed(value: float, decimals: int = 2) -> str:
    """A number with its sign, and a real minus."""
    return f"{value:+.{decimals}f}".replace("-", "−")


def p_value(p: float) -> str:
    """A p value as it is usually printed."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def as_printed(value: float) -> str:
    """A published number with the digits that it has, but at least one decimal."""
    text = f"{value:.10g}"
    return text if "." in text or "e" in text else f"{text}.0"


def number_cell(value: float | None, factor: float, decimals: int) -> Cell:
    """A number in another unit."""
    return empty() if value is None else Cell(lines=(f"{value * factor:,.{decimals}f}",), sort=value)


def scientific_cell(value: float | None) -> Cell:
    """A number that may be very small."""
    return empty() if value is None else Cell(lines=(f"{value:.1e}".replace("-", "−"),), sort=value)


def p_cell(comparison: Comparison) -> Cell:
    """The p value of a comparison, alone and corrected."""
    if comparison.p is None or comparison.holm is None:
        return empty()
    return Cell(lines=(p_value(comparison.p), f"Holm {p_value(comparison.holm)}"), sort=comparison.p)


def without_empty_columns(table: Table) -> Table:
    """A table without the columns that say nothing in any row."""
    kept = [
        index
        for index in range(len(table.columns))
        if index < table.headers or any(row[index] != empty() for row in table.rows)
    ]
    return replace(
        table,
        columns=tuple(table.columns[index] for index in kept),
        rows=tuple(tuple(row[index] for index in kept) for row in table.rows),
    )


def published_cell(values: Sequence[float | None], published: Sequence[Published], after: Sequence[str] = ()) -> Cell:
    """What is published about an arm, a line for each source; those that are only quoted have a star.

    Args:
        values: One for each source.
        published: The sources.
        after: What follows each value.
    """
    endings = after or [""] * len(values)
    lines = tuple(
        f"{as_printed(round(value, 6))}{ending}{'' if each.source == 'paper' else '*'}"
        for value, each, ending in zip(values, published, endings, strict=True)
        if value is not None
    )
    return Cell(lines=lines, sort=next(value for value in values if value is not None)) if lines else empty()


def seeds_cell(arm: Arm) -> Cell:
    """How many seeds count, of how many that were planned."""
    finished, planned = sum(run.state == "finished" for run in arm.runs), len(arm.runs)
    return Cell(lines=(str(planned) if finished == planned else f"{finished} of {planned}",), sort=float(finished))


def empty() -> Cell:
    """Nothing to say."""
    return Cell(lines=(NOTHING,))


def heading_cells(arm: Arm, names: Sequence[str]) -> tuple[Cell, ...]:
    """What a row is: the arm's group and its label."""
    group = [arm.record.group.get(name, NOTHING) for name in names]
    return tuple(Cell(lines=(text,), sort=sortable(text)) for text in (*group, arm.label))


def heading_columns(names: Sequence[str], last: str) -> tuple[Column, ...]:
    """The columns over `heading_cells`."""
    return tuple(Column(title=name, numeric=False) for name in (*names, last))


def arm_notes(arms: Sequence[Arm]) -> list[str]:
    """What readers should know about arms, each text once, after the names of those that it is about."""
    about: dict[str, list[Arm]] = {}
    for arm in arms:
        if arm.record.note:
            about.setdefault(arm.record.note, []).append(arm)
    found = []
    for note, noted in about.items():
        labels = {arm.label for arm in noted}
        whole = len(noted) > 1 and len(labels) == 1 and all(a in noted for a in arms if a.label in labels)
        found.append(f"{noted[0].label if whole else ', '.join(arm.name for arm in noted)}: {note}")
    return found


def group_names(arms: Sequence[Arm]) -> list[str]:
    """The columns that groups have."""
    return list(dict.fromkeys(name for arm in arms for name in arm.record.group))


def metric_name(metric: str) -> str:
    """A metric of a result as people write it."""
    return METRICS.get(metric, metric.replace("_", " "))


def capital(text: str) -> str:
    """A text with a large first letter, unless it has its own way to be written."""
    return text[:1].upper() + text[1:] if text.islower() else text


def sortable(text: str) -> float | str:
    """A number where a text is one."""
    try:
        return float(text)
    except ValueError:
        return text
