"""A table on a wide terminal, and a list of names and values on a narrow one."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

NARROW = 80
"""Terminals with fewer columns get a list."""


class Rows:
    """Rows of texts, none of which is ever cut.

    Args:
        columns: Titles of the columns.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = columns
        self._rows: list[tuple[str, ...]] = []

    def add(self, *cells: str) -> None:
        """Add a row."""
        self._rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width < NARROW:
            for row in self._rows:
                named = [f"{title}: {cell}" for title, cell in zip(self.columns, row, strict=True) if cell]
                yield Text("\n  ".join(named))
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in self.columns:
            table.add_column(title, overflow="fold")
        for row in self._rows:
            table.add_row(*map(Text, row))
        yield table
