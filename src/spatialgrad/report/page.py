"""A report as one self-contained HTML page, readable offline and without JavaScript, and as Markdown."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from spatialgrad.report import provenance
from spatialgrad.report.figures import build_figures
from spatialgrad.report.figures.base import PageFigure
from spatialgrad.report.load import load_results
from spatialgrad.report.results import StudyResults
from spatialgrad.report.single import load_single, single_tables
from spatialgrad.report.tables.cells import Table
from spatialgrad.report.tables.results import build_tables
from spatialgrad.studies.archive import is_archive
from spatialgrad.studies.record import STUDY
from spatialgrad.studies.registry import find_studies
from spatialgrad.train.errors import ConfigError, StorageError
from spatialgrad.train.jsonfiles import replacing
from spatialgrad.train.run import CONFIG

MARKDOWN, PAGE = "report.md", "index.html"


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a page shows of a study, or of a single training."""

    id: str
    """Unique within the page."""
    study: StudyResults
    tables: tuple[Table, ...]
    figures: tuple[PageFigure, ...]

    @property
    def title(self) -> str:
        """The title of the study."""
        return self.study.record.title + (" (part)" if self.study.record.omitted else "")


def write_report(sources: Sequence[str | Path], out: Path | None = None) -> Path:
    """Write a report of studies or single trainings, finished or not.

    Args:
        sources: Folders of studies or runs, archives, or names of studies whose folders are in `studies/`.
        out: Output folder; by default `report` in the folder that is reported, or beside the first of several; for
            archives, in the working directory.

    Returns:
        Path of the HTML page.

    Raises:
        ConfigError: If a study is not found.
    """
    folders = list(dict.fromkeys(folder for each in sources for folder in _find(each)))
    if not folders:
        raise ConfigError("give at least one folder or name of a study; see `spatialgrad report --help`")
    parts = [_part(folder, f"study-{number}") for number, folder in enumerate(folders, 1)]
    if out is None and any(part.study.archived for part in parts):
        out = Path("report")  # archives are committed, pages are not
    if out is None:
        out = (folders[0] if len(folders) == 1 else folders[0].parent) / "report"
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write to {out}: {error.strerror or error}") from error
    # Neither is replaced before both are rendered.
    with replacing(out / MARKDOWN) as document, replacing(out / PAGE) as page:
        document.write(render_markdown(parts).encode())
        page.write(render_html(parts).encode())
    return out / PAGE


def render_html(parts: Sequence[Part]) -> str:
    """All parts as one page."""
    from markupsafe import Markup

    return _render("page.html", parts, style=Markup(_file("style.css")), script=Markup(_file("script.js")))


def render_markdown(parts: Sequence[Part]) -> str:
    """All parts as one document; figures are described."""
    text = _render("report.md", parts, finalize=escape_markdown, autoescape=False)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def escape_markdown(value: Any) -> Any:
    """A text in one line, with Markdown and HTML syntax escaped; markup stays as it is."""
    if hasattr(value, "__html__"):
        return value
    text = " ".join(str(value).split()).replace("\\", "\\\\")
    text = re.sub(r"([`*_{}\[\]|~$#!])", r"\\\1", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _find(source: str | Path) -> list[Path]:
    folder = Path(source)
    is_run = (folder / CONFIG).exists() and not (folder / STUDY).exists()
    return [folder] if is_run else find_studies(source)


def _part(folder: Path, identity: str) -> Part:
    if is_archive(folder) or (folder / STUDY).exists():
        study = load_results(folder)
        tables = build_tables(study)
    else:
        study = load_single(folder)
        tables = single_tables(study)
    return Part(id=identity, study=study, tables=tables, figures=build_figures(study, identity))


def _render(
    template: str, parts: Sequence[Part], *, finalize: Any = None, autoescape: bool = True, **values: Any
) -> str:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    # For generated markup, whose texts are already escaped.
    environment.filters["as_is"] = Markup
    return environment.get_template(template).render(
        parts=parts,
        title=parts[0].title if len(parts) == 1 else "Studies",
        written=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        progress=provenance.progress,
        trained=provenance.trained,
        facts=provenance.facts,
        command=provenance.command,
        problems=provenance.problems,
        no_claim=provenance.NO_CLAIM,
        **values,
    )


def _file(name: str) -> str:
    return (resources.files("spatialgrad.report") / "templates" / name).read_text(encoding="utf-8")
