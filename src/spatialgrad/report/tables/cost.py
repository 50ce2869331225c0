"""Further tables: cost, additional metrics, and the distance between two networks."""

from __future__ import annotations

from collections.abc import Sequence

from spatialgrad.report.reading import number
from spatialgrad.report.results import ArmResults, StudyResults
from spatialgrad.report.statistics import summarize
from spatialgrad.report.tables.cells import (
    Cell,
    Column,
    Table,
    arm_notes,
    empty,
    group_names,
    heading_cells,
    heading_columns,
    metric_name,
    number_cell,
    published_cell,
    scientific_cell,
    seeds_cell,
    spread,
)


def cost_table(study: StudyResults, arms: Sequence[ArmResults]) -> Table:
    """Time, multiply-accumulates, parameters and memory, beside the published values."""
    names, unit = group_names(arms), study.record.cost_unit
    published = [each for arm in arms for each in arm.record.published]
    show_cost = unit is not None and any(each.cost is not None for each in published)
    show_macs = any(each.macs is not None for each in published)
    show_parameters = any(each.parameters is not None for each in published)
    time, factor = time_unit([study.seconds(arm) for arm in arms])
    whose = ", ours" if show_cost else ""
    columns = [*heading_columns(names, "Method"), Column(title=f"{time.capitalize()} per run{whose}")]
    columns += [Column(title="×\u00a0reference"), Column(title="Share of scaling (%)")]
    columns += [Column(title=f"{unit}, published (×\u00a0reference)")] if show_cost else []
    columns.append(Column(title="MACs in training (M)", foldable=True))
    columns += [Column(title="MACs, published (M)", foldable=True)] if show_macs else []
    columns.append(Column(title="Parameters in training (M)", foldable=True))
    columns += [Column(title="Parameters, published (M)", foldable=True)] if show_parameters else []
    columns.append(Column(title="Peak memory (MB)"))
    rows = []
    for arm in arms:
        sources, seconds, reference = arm.record.published, study.seconds(arm), study.reference(arm) or arm
        base = study.seconds(reference)
        own, scaling = arm.mean("seconds"), arm.mean("update_seconds")
        cells = [*heading_cells(arm, names), number_cell(seconds, factor, 2)]
        cells.append(number_cell(None if seconds is None or not base else seconds / base, 1, 2))
        cells.append(number_cell(None if not own or scaling is None else 100 * scaling / own, 1, 1))
        if show_cost:
            cells.append(published_cell([each.cost for each in sources], sources, _ratios(arm, reference)))
        cells.append(number_cell(arm.mean("training_macs"), 1e-6, 1))
        if show_macs:
            cells.append(published_cell([_millions(each.macs) for each in sources], sources))
        cells.append(number_cell(arm.mean("training_parameters"), 1e-6, 2))
        if show_parameters:
            cells.append(published_cell([_millions(each.parameters) for each in sources], sources))
        cells.append(number_cell(arm.mean("peak_memory_bytes"), 2**-20, 0))
        rows.append(tuple(cells))
    tuned = [arm.name for arm in arms if arm.record.tuned_by]
    notes = ["Means over finished runs. The time covers all phases: training, evaluation, scaling and checkpoints."]
    notes += [f"The time of {', '.join(tuned)} includes the whole search."] if tuned else []
    return Table(
        caption="Cost",
        columns=tuple(columns),
        rows=tuple(rows),
        headers=len(names) + 1,
        notes=tuple(notes),
    )


def time_unit(seconds: Sequence[float | None]) -> tuple[str, float]:
    """The unit in which the longest time is at least 1, and its factor; hours if no time is known."""
    largest = max((each for each in seconds if each is not None), default=3600.0)
    return ("hours", 1 / 3600) if largest >= 3600 else ("minutes", 1 / 60) if largest >= 60 else ("seconds", 1.0)


def metrics_tables(study: StudyResults, arms: Sequence[ArmResults]) -> list[Table]:
    """The additional metrics that the paper prints, if any."""
    metrics = list(dict.fromkeys(name for arm in arms for each in arm.record.published for name in each.other))
    if not metrics:
        return []
    names = group_names(arms)
    columns = list(heading_columns(names, "Method"))
    for of in ("ours", "published"):
        columns += [Column(title=f"{metric_name(metric)}, {of} (%)") for metric in metrics]
    rows = []
    for arm in arms:
        cells = list(heading_cells(arm, names))
        for metric in metrics:
            summary = summarize([value for run in arm.runs if (value := run.metric(metric)) is not None])
            cells.append(empty() if summary is None else Cell(lines=(spread(summary),), sort=summary.mean))
        sources = arm.record.published
        cells += [published_cell([each.other.get(metric) for each in sources], sources) for metric in metrics]
        rows.append(tuple(cells))
    return [Table(caption="Additional metrics", columns=tuple(columns), rows=tuple(rows), headers=len(names) + 1)]


def distance_table(arms: Sequence[ArmResults]) -> Table:
    """Distance between networks that should stay equal."""
    names = group_names(arms)
    rows = []
    for arm in arms:
        last = [run.distances[-1] for run in arm.runs if run.distances]
        finals = [distance for each in last if (distance := number(each, "distance")) is not None]
        steps = [step for each in last if (step := number(each, "step")) is not None]
        every = [number(each, "distance") for run in arm.runs for each in run.distances]
        losses = [(number(each, "loss_branched"), number(each, "loss_scaled")) for each in last]
        rows.append(
            (
                *heading_cells(arm, names),
                scientific_cell(max(finals, default=None)),
                scientific_cell(max((each for each in every if each is not None), default=None)),
                scientific_cell(max((abs(a - b) for a, b in losses if a is not None and b is not None), default=None)),
                number_cell(max(steps, default=None), 1, 0),
                seeds_cell(arm),
            )
        )
    columns = (
        *heading_columns(names, "Setting"),
        Column(title="Final distance"),
        Column(title="Largest distance"),
        Column(title="Final difference in loss"),
        Column(title="Steps"),
        Column(title="Seeds"),
    )
    notes = ["Largest values over seeds."]
    notes += arm_notes(arms)
    return Table(
        caption="Two networks trained side by side: with branches, and with scaled gradients",
        columns=columns,
        rows=tuple(rows),
        headers=len(names) + 1,
        notes=tuple(notes),
    )


def _ratios(arm: ArmResults, reference: ArmResults) -> list[str]:
    base = next((each.cost for each in reference.record.published if each.source == "paper"), None)
    # Costs quoted from another paper were measured on another machine.
    return [
        f" (× {each.cost / base:.2f})" if base and each.cost is not None and each.source == "paper" else ""
        for each in arm.record.published
    ]


def _millions(value: float | None) -> float | None:
    return None if value is None else value / 1e6
