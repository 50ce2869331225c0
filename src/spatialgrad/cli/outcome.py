"""The end of a command with several runs: a short table on the terminal, and the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from spatialgrad.cli.importing import importing
from spatialgrad.cli.rows import Rows

if TYPE_CHECKING:
    from spatialgrad.report.tables.cells import Table

WIDTH_OF_FILES = 160
"""Width of tables that are written to a file or a pipe."""


def show_report(folder: Path) -> None:
    """Write the report of a study's folder, print its first table, and where the rest is."""
    with importing():
        from spatialgrad.report.load import load_results
        from spatialgrad.report.page import write_report
        from spatialgrad.report.tables.results import build_tables

    page = write_report([folder])
    tables = build_tables(load_results(folder))
    console = terminal()
    console.print()
    if tables:
        console.print(as_rows(tables[0]))
    console.print(f"\nReport: {page}", highlight=False, soft_wrap=True)


def as_rows(table: Table) -> Rows:
    """A table of a report, each cell in one line."""
    return rows_of([column.title for column in table.columns], [[" ".join(c.lines) for c in row] for row in table.rows])


def rows_of(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Rows:
    """Rows of texts."""
    rows = Rows(columns)
    for row in cells:
        rows.add(*row)
    return rows


def terminal() -> Console:
    """The standard output; wide if it is a file or a pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH_OF_FILES)
