"""The content of a study's report, for both Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spatialgrad.report.figures.base import PageFigure
from spatialgrad.report.figures.build import build_figures
from spatialgrad.report.provenance import NO_CLAIM, Trouble, command, facts, progress, trained, troubles
from spatialgrad.report.results import StudyResults
from spatialgrad.report.tables.cells import Table
from spatialgrad.report.tables.results import build_tables


@dataclass(frozen=True, kw_only=True)
class Section:
    """Everything that a report shows about a study."""

    id: str
    """Unique within the page."""
    title: str
    name: str
    shows: str
    question: str
    scale: str
    finished: int
    total: int
    progress: str
    warning: str
    trained: str
    differences: str
    note: str
    tables: tuple[Table, ...]
    figures: tuple[PageFigure, ...]
    troubles: tuple[Trouble, ...]
    facts: tuple[tuple[str, str], ...]
    command: str


def build_sections(studies: Iterable[StudyResults]) -> tuple[Section, ...]:
    """One section per study, in the order given."""
    return tuple(_section(study, f"study-{number}") for number, study in enumerate(studies, 1))


def _section(study: StudyResults, identity: str) -> Section:
    record = study.record
    # Before the troubles: figures read files that may turn out to be damaged.
    figures = build_figures(study, identity)
    return Section(
        id=identity,
        title=f"{record.title} (part)" if record.omitted else record.title,
        name=record.name,
        shows=record.shows,
        question=record.question,
        scale=record.scale,
        finished=study.states["finished"],
        total=len(study.runs),
        progress=progress(study),
        warning=NO_CLAIM if record.scale == "pocket" else "",
        trained=trained(study),
        differences=record.differences,
        note=record.note,
        tables=build_tables(study),
        figures=figures,
        troubles=tuple(troubles(study)),
        facts=tuple(facts(study)),
        command=command(study),
    )
