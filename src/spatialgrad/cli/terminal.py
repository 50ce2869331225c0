"""What commands print: tables that no terminal cuts, and the name that this program was started by."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

NARROW = 80
"""Terminals with fewer columns get a list instead of a table."""
WIDTH_OF_FILES = 320
"""Width of tables that are written to a file or a pipe."""
NAME = "spatialgrad"


class Rows:
    """Rows of texts, none of which is ever cut: a table, or a list of names and values on a narrow terminal.

    Args:
        columns: Titles of the columns.
        rows: The rows.
    """

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[str]] = ()) -> None:
        self.columns, self._rows = columns, list(rows)

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


def terminal() -> Console:
    """The standard output; wide if it is a file or a pipe."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH_OF_FILES)


def program() -> str:
    """How this program can be started again from the current folder."""
    started = Path(sys.argv[0])
    if started.name == "__main__.py" and started.parent.name == NAME:
        return f"{_as_typed(Path(sys.executable), 'python')} -m {NAME}"
    return _as_typed(started, NAME) if started.name == NAME else NAME


def _as_typed(path: Path, name: str) -> str:
    found = shutil.which(name)
    if found is not None and Path(found).parent.resolve() == path.parent.resolve():
        return name
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
