"""``spatialgrad report``, and the end of commands that train several times: a short table and the report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from spatialgrad.cli.terminal import Rows, terminal


def report(
    studies: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="STUDY|RUN...")],
    out: Path | None = None,
) -> None:
    """Write the tables and figures of studies or single trainings, finished or not, as index.html and report.md.

    Args:
        studies: Folders of studies or runs, archives, or names of studies whose folders are in studies/.
        out: Output folder; by default report/ in the folder that is reported, or beside the first of several.
    """
    with _announced():
        from spatialgrad.report.page import write_report

        page = write_report(studies, out)
    print(page)


@contextmanager
def _announced() -> Iterator[None]:
    """Say on the standard error what takes seconds; on a terminal only for as long as it does."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print("Writing the report ...")
        yield
        return
    with console.status("Writing the report"):
        yield


def show_report(folder: Path) -> None:
    """Write the report of a study's folder, print its first table, and where the rest is."""
    with _announced():
        from spatialgrad.report.load import load_results
        from spatialgrad.report.page import write_report
        from spatialgrad.report.tables.results import build_tables

        page, tables = write_report([folder]), build_tables(load_results(folder))
    console = terminal()
    for table in tables[:1]:
        cells = [[" ".join(cell.lines) for cell in row] for row in table.rows]
        console.print()
        console.print(Rows([column.title for column in table.columns], cells))
    console.print(f"\nReport: {page}", soft_wrap=True)
