"""The tables of the paper's text, as rows of cells."""

import os
import re
from pathlib import Path

import pytest


def read_paper():
    """The paper's source, from SPATIALGRAD_PAPER or a folder beside the checkout; a skip if it is not there."""
    folder = os.environ.get("SPATIALGRAD_PAPER") or Path(__file__).parents[3] / "shared" / "paper"
    files = sorted(Path(folder).glob("*.tex"))
    if not files:
        pytest.skip(f"the paper's text is not in {folder}; set SPATIALGRAD_PAPER to the folder of its .tex file")
    return "\n".join(path.read_text() for path in files)


def tables(text):
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


def table(text, words):
    """The rows of the table whose caption contains some words."""
    (rows,) = [rows for caption, rows in tables(text) if words in caption]
    return rows


def mean_and_std(cell):
    """From "$94.90_{\\pm0.07}$" or "$70.99$"."""
    match = re.fullmatch(r"\$([\d.]+)(?:_\{\\pm([\d.]+)\})?\$", cell)
    assert match, cell
    return float(match[1]), float(match[2]) if match[2] else None


def plain(cell):
    """A name as the package writes it."""
    return cell.replace("$\\alpha", "α").replace("$", "").replace("^*", "").strip()
