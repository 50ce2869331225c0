"""The command `spatialgrad report`."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from spatialgrad.studies.record import STUDY
from spatialgrad.studies.study import SCALES
from spatialgrad.train.errors import ConfigError, StorageError
from spatialgrad.train.runs.folder import replacing

STUDIES = Path("studies")
MARKDOWN, PAGE = "report.md", "index.html"


def write_report(studies: Sequence[str | Path], out: Path | None = None) -> Path:
    """Write a report of studies, finished or not, as Markdown and as one page.

    Args:
        studies: Folders of studies, or names of studies whose folders are in `studies/`.
        out: Folder to write to; by default `report` in the study's folder, or beside the first of several.

    Returns:
        The page.

    Raises:
        ConfigError: If there is no such study.
    """
    from spatialgrad.report.load import collect
    from spatialgrad.report.render.html import render_html
    from spatialgrad.report.render.markdown import render_markdown
    from spatialgrad.report.sections import build_sections

    folders = list(dict.fromkeys(folder for each in studies for folder in find_studies(each)))
    if not folders:
        raise ConfigError("name at least one study")
    sections = build_sections(collect(folder) for folder in folders)
    written = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    # Both are made before either is written.
    texts = {MARKDOWN: render_markdown(sections, written), PAGE: render_html(sections, written)}
    if out is None:
        out = (folders[0] if len(folders) == 1 else folders[0].parent) / "report"
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write to {out}: {error.strerror or error}") from error
    for name, text in texts.items():
        with replacing(out / name) as file:
            file.write(text.encode("utf-8", "replace"))
    return out / PAGE


def find_studies(name: str | Path) -> list[Path]:
    """The folder that is meant: itself, or those of a study's name, at all scales that were run."""
    folder = Path(name)
    if (folder / STUDY).exists():
        return [folder]
    named = [STUDIES / f"{name}-{scale}" for scale in SCALES]
    found = [path for path in (STUDIES / folder, *named) if (path / STUDY).exists()]
    if found:
        return found
    there = sorted(path.parent.name for path in STUDIES.glob(f"*/{STUDY}"))
    known = f"; in {STUDIES}/ there are {', '.join(there)}" if there else ""
    raise ConfigError(f"no study in {folder}: it holds no {STUDY}{known}")
