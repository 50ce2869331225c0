"""The tables of a study: its results beside the published ones, and their cost."""

from __future__ import annotations

from collections.abc import Sequence

from spatialgrad.report.results import ArmResults, StudyResults
from spatialgrad.report.statistics import Comparison, compare_paired, correct, summarize
from spatialgrad.report.tables.cells import (
    Cell,
    Column,
    Table,
    arm_notes,
    as_printed,
    capital,
    empty,
    fold_constant_columns,
    group_names,
    heading_cells,
    heading_columns,
    metric_name,
    p_cell,
    published_cell,
    seeds_cell,
    signed,
    sortable,
    spread,
    without_empty_columns,
)
from spatialgrad.report.tables.cost import cost_table, distance_table, metrics_tables
from spatialgrad.report.tables.int8 import int8_tables

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
        layout(study, compare_all(study)),
        *int8_tables(study, study.shown),
        cost_table(study, study.shown),
        *metrics_tables(study, study.shown),
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


def _row_by_row(study: StudyResults, compared: dict[str, Comparison | None]) -> Table:
    names = group_names(study.shown)
    rows = []
    for arm in study.shown:
        comparison = compared[arm.record.key]
        rows.append(
            (
                *heading_cells(arm, names),
                _ours(study, arm, comparison),
                *_difference(study, arm, comparison),
                seeds_cell(arm),
                _published(arm),
                _published_difference(study, arm),
                _published_for([arm]),
            )
        )
    columns = (
        *heading_columns(names, "Method"),
        Column(title=f"{_values(study)} (%)"),
        Column(title="Difference [95\u00a0%\u00a0CI]"),
        Column(title="p"),
        Column(title="Seeds", foldable=True),
        Column(title="Published (%)"),
        Column(title="Published difference"),
        Column(title="Published for", numeric=False, foldable=True),
    )
    return Table(
        caption=_caption(study), columns=columns, rows=tuple(rows), headers=len(names) + 1, notes=_result_notes(study)
    )


def _side_by_side(study: StudyResults, compared: dict[str, Comparison | None]) -> Table:
    names = group_names(study.shown)
    labels = list(dict.fromkeys(arm.label for arm in study.shown))
    # A label that is the reference of one group is compared in none.
    others = [label for label in labels if not any(a.record.reference for a in study.shown if a.label == label)]
    rows = []
    for group, arms in study.groups.items():
        by_label = {arm.label: arm for arm in arms}
        cells = [Cell(lines=(value,), sort=sortable(value)) for value in group]
        arms_of = [by_label.get(label) for label in labels]
        compared_arms = [by_label.get(label) for label in others]
        cells += [_ours(study, arm, compared[arm.record.key]) if arm else empty() for arm in arms_of]
        for arm in compared_arms:
            cells += _difference(study, arm, compared[arm.record.key]) if arm else (empty(), empty())
        cells.append(_fewest_seeds(arms))
        cells += [_published(arm) if arm else empty() for arm in arms_of]
        cells += [_published_difference(study, arm) if arm else empty() for arm in compared_arms]
        rows.append((*cells, _published_for(arms)))
    # Our own results come first, where the narrowest screen shows them.
    of = {label: f"{label}: " if len(others) > 1 else "" for label in others}
    columns = [Column(title=name, numeric=False) for name in names]
    columns += [Column(title=f"{label}, ours (%)") for label in labels]
    for label in others:
        columns += [Column(title=f"{of[label]}Difference [95\u00a0%\u00a0CI]"), Column(title=f"{of[label]}p")]
    columns.append(Column(title="Seeds", foldable=True))
    columns += [Column(title=f"{label}, published (%)") for label in labels]
    columns += [Column(title=f"{of[label]}Published difference") for label in others]
    columns.append(Column(title="Published for", numeric=False, foldable=True))
    return Table(
        caption=_caption(study),
        columns=tuple(columns),
        rows=tuple(rows),
        headers=len(names),
        notes=_result_notes(study),
    )


def _ours(study: StudyResults, arm: ArmResults, comparison: Comparison | None) -> Cell:
    summary = summarize(list(arm.values.values()))
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


def _difference(study: StudyResults, arm: ArmResults, comparison: Comparison | None) -> tuple[Cell, Cell]:
    if arm.record.reference:
        return Cell(lines=("reference",)), empty()
    if comparison is None:
        return empty(), empty()
    mark = "▲ " if comparison.better else "▼ " if comparison.worse else ""
    lines = [("" if study.record.scale == "pocket" else mark) + signed(comparison.difference)]
    if comparison.low is not None and comparison.high is not None:
        lines.append(f"[{signed(comparison.low)}, {signed(comparison.high)}]")
    lines += [comparison.note] if comparison.note else []
    return Cell(lines=tuple(lines), sort=comparison.difference), p_cell(comparison)


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
