"""A report as Markdown: tables, and descriptions of the figures."""

from __future__ import annotations

import re
from collections.abc import Sequence

from spatialgrad.report.render.characters import without_controls
from spatialgrad.report.sections import Section
from spatialgrad.report.tables.cells import Cell, Table

ADDRESS = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)|(?=@)", re.IGNORECASE)
"""Where a renderer would recognise an address and make it a link."""
NO_LINK = "<!-- -->"
"""Invisible, and no part of an address."""


def render_markdown(sections: Sequence[Section], written: str) -> str:
    """All studies in one document.

    Args:
        sections: One per study.
        written: When the report was written.
    """
    parts = [f"# {inline(sections[0].title)}" if len(sections) == 1 else "# Studies", f"Written {inline(written)}."]
    for section in sections:
        if len(sections) > 1:
            parts.append(f"## {inline(section.title)}")
        parts += _section(section, "##" if len(sections) == 1 else "###")
    return "\n\n".join(parts) + "\n"


def table(each: Table) -> str:
    """A table with its caption and notes."""
    lines = [
        f"**{inline(each.caption)}**" + "".join(f" · {inline(constant)}" for constant in each.constants),
        "",
        "| " + " | ".join(inline(column.title) for column in each.columns) + " |",
        "|" + "|".join("---:" if column.numeric else "---" for column in each.columns) + "|",
        *("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in each.rows),
    ]
    notes = [f"{inline(note)}" for note in each.notes]
    return "\n".join(lines) + ("\n\n" + "  \n".join(notes) if notes else "")


def inline(text: str) -> str:
    """A text in one line, with all Markdown and HTML syntax escaped, and without control characters."""
    text = re.sub(r"\s+", " ", without_controls(text)).strip().replace("\\", "\\\\")
    text = re.sub(r"([`*_{}\[\]|~$#!])", r"\\\1", text)
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return ADDRESS.sub(NO_LINK, text)


def _section(section: Section, heading: str) -> list[str]:
    parts = [f"{inline(section.shows)}. {inline(section.question)}", f"**{inline(section.progress)}.**"]
    parts += [f"**{inline(section.warning)}**"] if section.warning else []
    parts += [f"Trained here: {inline(section.trained)}."] if section.trained else []
    about = "Measured" if section.scale == "own" else "Differences from the paper"
    parts += [f"{about}: {inline(section.differences)}"] if section.differences else []
    parts += [f"Note: {inline(section.note)}"] if section.note else []
    parts += [table(each) for each in section.tables]
    if section.troubles:
        parts.append(f"{heading} Unfinished and damaged runs")
        rows = [
            "| " + " | ".join(inline(str(text)) for text in (t.run, t.seed, t.state, t.progress, t.message)) + " |"
            for t in section.troubles
        ]
        parts.append("\n".join(["| Run | Seed | State | Progress | Message |", "|---|---:|---|---|---|", *rows]))
    if section.figures:
        parts.append(f"{heading} Figures")
        parts.append("\n".join(f"- **{inline(each.title)}.** {inline(each.alt)}" for each in section.figures))
    parts.append(f"{heading} Provenance")
    parts.append("\n".join(f"- {inline(name)}: {inline(value)}" for name, value in section.facts))
    # In one line, so that no name in it can close the block.
    parts.append(f"```bash\n{' '.join(section.command.splitlines())}\n```")
    return parts


def _cell(cell: Cell) -> str:
    text = "<br>".join(inline(line) for line in cell.lines)
    return f"**{text}**" if cell.strong else text
