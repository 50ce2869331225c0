"""Write a report: Markdown and one HTML page."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from spatialgrad.report.load import load_results
from spatialgrad.report.render.html import render_html
from spatialgrad.report.render.markdown import render_markdown
from spatialgrad.report.sections import build_sections
from spatialgrad.studies.archive import is_archive
from spatialgrad.studies.registry import find_studies
from spatialgrad.train.errors import ConfigError, StorageError
from spatialgrad.train.jsonfiles import replacing

MARKDOWN, PAGE = "report.md", "index.html"


def write_report(studies: Sequence[str | Path], out: Path | None = None) -> Path:
    """Write a report of studies, finished or not.

    Args:
        studies: Study folders, archives, or names of studies whose folders are in `studies/`.
        out: Output folder; by default `report` in the study's folder, or beside the first of several; for archives,
            in the working directory.

    Returns:
        Path of the HTML page.

    Raises:
        ConfigError: If a study is not found.
    """
    folders = list(dict.fromkeys(folder for each in studies for folder in find_studies(each)))
    if not folders:
        raise ConfigError("give at least one study folder or name; see `spatialgrad report --help`")
    sections = build_sections(load_results(folder) for folder in folders)
    written = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    if out is None and any(map(is_archive, folders)):
        out = Path("report")  # archives are committed, pages are not
    if out is None:
        out = (folders[0] if len(folders) == 1 else folders[0].parent) / "report"
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write to {out}: {error.strerror or error}") from error
    # Neither is replaced before both are rendered.
    with replacing(out / MARKDOWN) as document, replacing(out / PAGE) as page:
        document.write(render_markdown(sections, written).encode("utf-8", "replace"))
        page.writelines(piece.encode("utf-8", "replace") for piece in render_html(sections, written))
    return out / PAGE
