"""The numbers that the paper prints: as a table beside this file, and from the paper's own source where it is there."""

import csv
import os
import re
from pathlib import Path
from typing import NamedTuple

import pytest

SHIPPED = Path(__file__).with_name("published.csv")
NUM_KEYS = {1: 2, 2: 2, 3: 2, 4: 1, 5: 2, 6: 3, 7: 1, 8: 1}
"""How many columns of each table say what a row is."""
MEASURES = {1: ("cost", "macs", "parameters", "accuracy"), 2: ("cost", "macs", "parameters", "accuracy")} | {
    3: ("cost", "accuracy")
}
"""The other columns of tables whose header has two lines."""
GRIDS = {("3", "Grid Search", "alpha and beta"): r"0.8, [\d., ]+", ("3", "Autocorrelation", "k"): "1,[0-9,]+"} | {
    ("Figure 8", "", "k"): "2,[0-9,]+"
}
"""The grids of searches: where each belongs, and how it begins in the source."""


class Printed(NamedTuple):
    """One number, or several that are printed in one cell."""

    table: str
    row: str
    """What the row is; a star at the end marks values that are quoted from another paper."""
    column: str
    value: str


def shipped():
    """The table beside this file."""
    with open(SHIPPED, newline="", encoding="utf-8") as file:
        return [Printed(**row) for row in csv.DictReader(file)]


def in_paper():
    """The same from the paper's source: in SPATIALGRAD_PAPER, or in a folder beside the checkout; else a skip."""
    folder = os.environ.get("SPATIALGRAD_PAPER") or Path(__file__).parents[3] / "shared" / "paper"
    files = sorted(Path(folder).glob("*.tex"))
    if not files:
        pytest.skip(f"the paper's source is not in {folder}; set SPATIALGRAD_PAPER to the folder of its .tex file")
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    found = []
    for number, (caption, rows) in enumerate(_tables(text), 1):
        runs = re.search(r"averaged over (\d+)", caption)
        if runs:
            found.append(Printed(str(number), "", "runs", runs[1]))
        found += _cells(number, rows)
    grids = re.findall(r"\\\{([\d., ]+)\\\}", text)
    for where, start in GRIDS.items():
        (grid,) = {grid for grid in grids if re.fullmatch(start, grid)}
        found.append(Printed(*where, " ".join(grid.replace(",", " ").split())))
    return found


def numbers(value):
    """The numbers of a cell: (94.97, 0.06) from "94.97 ± 0.06"."""
    return tuple(float(part) for part in re.findall(r"[\d.]+", value))


def _tables(text):
    """Every table: its caption, and its rows with the cells that are empty below a \\multirow filled in."""
    found = []
    for body in re.findall(r"\\begin\{table\}(.*?)\\end\{table\}", text, re.DOTALL):
        caption = body[body.index("\\caption") :]
        content = re.search(r"\\begin\{tabular\}\{[^}]*\}(.*?)\\end\{tabular\}", body, re.DOTALL)[1]
        rows, above = [], []
        for line in content.split("\\\\"):
            line = re.sub(r"\\Xhline\{[^}]*\}|\\hline|2\\arrayrulewidth\}", "", line)
            line = re.sub(r"\\multirow\{\d+\}\{\*\}\{([^}]*)\}", r"\1", line)
            line = re.sub(r"\\textbf\{([^}]*)\}", r"\1", line)
            cells = [cell.strip() for cell in line.split("&")]
            if len(cells) < 2:
                continue
            cells = [cell or (above[column] if column < len(above) else "") for column, cell in enumerate(cells)]
            above = cells
            rows.append(cells)
        found.append((caption, rows))
    return found


def _cells(number, rows):
    keys = NUM_KEYS[number]
    names, body = (MEASURES[number], rows[2:]) if number in MEASURES else (rows[0][keys:], rows[1:])
    for row in body:
        row = [cell for cell in row if cell]
        what = " · ".join(map(_plain, row[:keys]))
        for name, cell in zip(names, row[keys:], strict=True):
            # Tables 7 and 8 name their metrics in the header.
            column = name.partition(" (")[0] if number > 6 else name
            yield Printed(str(number), what, column, re.sub(r"_\{\\pm([\d.]+)\}", r" ± \1", cell).replace("$", ""))


def _plain(cell):
    """A name as the package writes it."""
    return cell.replace("$^*$", "*").replace("$\\alpha", "α").replace("$", "").strip()
