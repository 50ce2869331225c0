"""The tables of a study: its results beside the published ones, and their cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from spatialgrad.report.results import ArmResults, StudyResults
from spatialgrad.report.statistics import Comparison, compare_paired, correct
from spatialgrad.report.tables.cells import (
    Cell,
    Column,
    Table,
    arm_notes,
    arm_table,
    as_printed,
    capital,
    empty,
    fold_constant_columns,
    group_names,
    interval,
    make_table,
    metric_name,
    p_cell,
    published_cell,
    seeds_cell,
    signed,
    spread,
    without_empty_columns,
)
from spatialgrad.report.tables.cost import cost_table, distance_table, metrics_tables
from spatialgrad.report.tables.int8 import int8_tables

CellOf: TypeAlias = Callable[[ArmResults], Cell]

UNDER_WAY = ("waiting", "running", "interrupted")
"""States of runs that may still get a value."""
NOT_COMPARABLE = "Measured at paper scale with other networks, images, epochs or metrics: not comparable with ours."


def build_tables(study: StudyResults) -> tuple[Table, ...]:
    """The tables of a study, starting with the one that answers its question."""
    if not study.shown:
        return ()
    if study.record.metric == "distance":
        return (distance_table(study.shown),)
    layout = _side_by_side if study.record.layout == "columns" else _row_by_row
    tables = (
        layout(study),
        *int8_tables(study, study.shown),
        cost_table(study, study.shown),
        *metrics_tables(study.shown),
    )
    return tuple(fold_constant_columns(without_empty_columns(table)) for table in tables)


def compare_all(study: StudyResults) -> dict[str, Comparison | None]:
    """The comparison of every arm with its reference, by the arm's key, corrected for the whole study."""
    # Arms that share runs count as one comparison.
    runs_of = {arm.record.key: _compared_runs(study, arm) for arm in study.shown}
    known: dict[tuple[str, ...], Comparison | None] = {}
    pending = 0
    for arm in study.shown:
        runs, reference = runs_of[arm.record.key], study.reference(arm)
        if reference is None or runs in known:
            continue
        known[runs] = comparison = compare_paired(arm.values, reference.values)
        waits = any(run.state in UNDER_WAY for run in (*arm.runs, *reference.runs))
        pending += waits and len(arm.runs) > 1 and (comparison is None or comparison.p is None)
    corrected = dict(zip(known, correct(list(known.values()), pending), strict=True))
    return {key: corrected.get(runs) for key, runs in runs_of.items()}


def compared_arms(study: StudyResults) -> list[tuple[ArmResults, Comparison | None]]:
    """The arms of the table with their comparisons; None for references, and without common seeds."""
    compared = compare_all(study)
    return [(arm, compared[arm.record.key]) for arm in study.shown]


def _row_by_row(study: StudyResults) -> Table:
    cells = _cells(study)
    columns: list[tuple[Column, Callable[[ArmResults], Cell]]] = [
        (Column(title=f"{_values(study)} (%)"), cells["ours"]),
        (Column(title="Difference [95\u00a0%\u00a0CI]"), cells["difference"]),
        (Column(title="p"), cells["p"]),
        (Column(title="Seeds", foldable=True), seeds_cell),
        (Column(title="Published (%)"), _published),
        (Column(title="Published difference"), cells["published difference"]),
        (Column(title="Published for", numeric=False, foldable=True), lambda arm: _published_for([arm])),
    ]
    return arm_table(_caption(study), study.shown, columns, notes=_result_notes(study))


def _side_by_side(study: StudyResults) -> Table:
    labels, cells = list(dict.fromkeys(arm.label for arm in study.shown)), _cells(study)
    # A label that is the reference of one group is compared in none.
    others = [label for label in labels if not any(a.record.reference for a in study.shown if a.label == label)]
    of = {label: f"{label}: " if len(others) > 1 else "" for label in others}

    def cell(label: str, cell_of: CellOf) -> Callable[[Sequence[ArmResults]], Cell]:
        return lambda arms: next((cell_of(arm) for arm in arms if arm.label == label), empty())

    # Our own results come first, where the narrowest screen shows them.
    columns = [(Column(title=f"{label}, ours (%)"), cell(label, cells["ours"])) for label in labels]
    for label in others:
        columns += [(Column(title=f"{of[label]}Difference [95\u00a0%\u00a0CI]"), cell(label, cells["difference"]))]
        columns += [(Column(title=f"{of[label]}p"), cell(label, cells["p"]))]
    columns += [(Column(title="Seeds", foldable=True), _fewest_seeds)]
    columns += [(Column(title=f"{label}, published (%)"), cell(label, _published)) for label in labels]
    for label in others:
        title = f"{of[label]}Published difference"
        columns += [(Column(title=title), cell(label, cells["published difference"]))]
    columns += [(Column(title="Published for", numeric=False, foldable=True), _published_for)]
    headers = [Column(title=name, numeric=False) for name in group_names(study.shown)]
    return make_table(_caption(study), headers, list(study.groups.items()), columns, _result_notes(study))


def _cells(study: StudyResults) -> dict[str, CellOf]:
    """The cells of an arm that depend on the others, by what they show."""
    compared = compare_all(study)
    return {
        "ours": lambda arm: _ours(study, arm, compared[arm.record.key]),
        "difference": lambda arm: _difference(study, arm, compared[arm.record.key]),
        "p": lambda arm: p_cell(compared[arm.record.key]),
        "published difference": lambda arm: _published_difference(study, arm),
    }


def _ours(study: StudyResults, arm: ArmResults, comparison: Comparison | None) -> Cell:
    summary = arm.summary
    if summary is None:
        return Cell(lines=(_why_nothing(arm),))
    strong = comparison is not None and comparison.better and study.record.scale != "pocket"
    return Cell(lines=(spread(summary),), sort=summary.mean, strong=strong)


def _why_nothing(arm: ArmResults) -> str:
    states = {run.state for run in arm.runs}
    for state in ("running", "interrupted", "failed", "damaged"):
        if state in states:
            return state
    return "waiting" if arm.runs else "not planned"


def _compared_runs(study: StudyResults, arm: ArmResults) -> tuple[str, ...]:
    reference = study.reference(arm)
    return tuple(run.name for run in (*arm.runs, *(reference.runs if reference else ())))


def _fewest_seeds(arms: Sequence[ArmResults]) -> Cell:
    return min((seeds_cell(arm) for arm in arms), key=lambda cell: (cell.sort, -len(cell.lines[0])))


def _published(arm: ArmResults) -> Cell:
    published = arm.record.published
    spreads = ["" if each.std is None else f" ± {as_printed(each.std)}" for each in published]
    return published_cell([each.mean for each in published], published, spreads)


def _published_for(arms: Sequence[ArmResults]) -> Cell:
    """What the paper measured, where it is not what was trained here."""
    measured = tuple(dict.fromkeys(arm.record.published_for for arm in arms if arm.record.published_for))
    return Cell(lines=measured, sort=measured[0]) if measured else empty()


def _difference(study: StudyResults, arm: ArmResults, comparison: Comparison | None) -> Cell:
    if arm.record.reference:
        return Cell(lines=("reference",))
    if comparison is None:
        return empty()
    mark = "▲ " if comparison.better else "▼ " if comparison.worse else ""
    difference = ("" if study.record.scale == "pocket" else mark) + signed(comparison.difference)
    lines = (difference, interval(comparison), comparison.note)
    return Cell(lines=tuple(filter(None, lines)), sort=comparison.difference)


def _published_difference(study: StudyResults, arm: ArmResults) -> Cell:
    reference = study.reference(arm)
    if reference is None or not arm.record.published or not reference.record.published:
        return empty()
    own, base = arm.record.published[0], reference.record.published[0]
    # Only values from the same source are compared.
    if own.source != base.source:
        return empty()
    value = own.mean - base.mean
    return Cell(lines=(signed(value),), sort=value)


def _result_notes(study: StudyResults) -> tuple[str, ...]:
    record, published = study.record, [each for arm in study.shown for each in arm.record.published]
    notes = [f"{_values(study)}: mean ± sample standard deviation over seeds, in per cent, after the last epoch."]
    if any(arm.record.reference for arm in study.shown):
        notes.append(
            "Difference, in percentage points: mean difference from the reference over common seeds, with its 95 % "
            "confidence interval (Student's t); p value of the paired t test, uncorrected and corrected by Holm's "
            "method for all comparisons of this study."
        )
        if record.scale == "pocket":
            notes.append("At pocket scale, no difference is marked as significant.")
        else:
            notes.append(
                "Bold and ▲: significantly better than the reference (▼: worse), that is, at least 3 pairs, an "
                "interval without 0 and a corrected p below 0.05. All other differences may be due to chance."
            )
    if published:
        runs = f" over {record.published_seeds} runs" if record.published_seeds else ""
        other = "" if record.scale == "paper" else f" {NOT_COMPARABLE}"
        notes.append(f"Published: as printed in the paper{runs}.{other}")
    for source in dict.fromkeys(each.source for each in published if each.source != "paper"):
        notes.append(f"* measured by {source} and quoted by the paper.")
    return (*notes, *arm_notes(study.shown))


def _values(study: StudyResults) -> str:
    """What the measured values are called: ours, beside the paper's, or by the metric in a user's own study."""
    return capital(metric_name(study.record.metric)) if study.record.scale == "own" else "Ours"


def _caption(study: StudyResults) -> str:
    metric = capital(metric_name(study.record.metric))
    published = any(arm.record.published for arm in study.shown)
    return f"{metric}, ours and published ({study.record.shows})" if published else metric
