"""Further tables: cost, additional metrics, and the distance between two networks."""

from __future__ import annotations

from collections.abc import Sequence

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
from spatialgrad.train.result import StepSeconds


def cost_table(study: StudyResults, arms: Sequence[ArmResults]) -> Table:
    """Time, multiply-accumulates, parameters and memory, beside the published values."""
    names, unit = group_names(arms), study.record.cost_unit
    time, factor = time_unit([study.seconds(arm) for arm in arms])
    columns = [
        *heading_columns(names, "Method"),
        Column(title="Time per step in ms (×\u00a0reference)"),
        Column(title=f"{time.capitalize()} per run"),
        Column(title="Share of updates (%)"),
        Column(title=f"{unit}, published (×\u00a0reference)"),
        Column(title="MACs in training (M)", foldable=True),
        Column(title="MACs, published (M)", foldable=True),
        Column(title="Parameters in training (M)", foldable=True),
        Column(title="Parameters, published (M)", foldable=True),
        Column(title="Peak memory (MB)"),
    ]
    rows = []
    for arm in arms:
        sources, reference = arm.record.published, study.reference(arm) or arm
        total, updates = arm.mean("seconds"), arm.mean("update_seconds")
        rows.append(
            (
                *heading_cells(arm, names),
                _step_cell(arm.step_seconds, reference.step_seconds),
                number_cell(study.seconds(arm), factor, 2),
                number_cell(100 * updates / total if total and updates is not None else None, 1, 1),
                published_cell([each.cost if unit else None for each in sources], sources, _ratios(arm, reference)),
                number_cell(arm.mean("training_macs"), 1e-6, 1),
                published_cell([_millions(each.macs) for each in sources], sources),
                number_cell(arm.mean("training_parameters"), 1e-6, 2),
                published_cell([_millions(each.parameters) for each in sources], sources),
                number_cell(arm.mean("peak_memory_bytes"), 2**-20, 0),
            )
        )
    return Table(
        caption="Cost",
        columns=tuple(columns),
        rows=tuple(rows),
        headers=len(names) + 1,
        notes=tuple(_cost_notes(arms)),
    )


def _step_cell(step: StepSeconds | None, reference: StepSeconds | None) -> Cell:
    if step is None:
        return empty()
    ratio = "" if reference is None else f" (× {step.median / reference.median:.2f})"
    spread = f"[{1000 * step.low:,.1f}, {1000 * step.high:,.1f}]"
    return Cell(lines=(f"{1000 * step.median:,.1f}{ratio}", spread), sort=step.median)


def _cost_notes(arms: Sequence[ArmResults]) -> list[str]:
    notes = ["Means over finished runs."]
    if any(arm.step_seconds is not None for arm in arms):
        notes.append(
            "Time per step: median over the steps of all runs, with their 10th and 90th percentiles; processor time on "
            "CPUs, device time elsewhere, without updates, evaluation and checkpoints. × reference compares medians."
        )
    notes.append("Time per run: wall clock, all phases included. It depends on what else the machine was doing.")
    tuned = [arm.name for arm in arms if arm.record.tuned_by]
    notes += [f"The time of {', '.join(tuned)} includes the whole search."] if tuned else []
    formats: dict[str, list[str]] = {}
    for arm in arms:
        for each in arm.memory_formats:
            formats.setdefault(each, []).append(arm.label)
    if len(formats) > 1:
        told = "; ".join(f"{each}: {', '.join(dict.fromkeys(labels))}" for each, labels in formats.items())
        notes.append(f"Memory formats differ ({told}): × reference compares both the methods and the formats.")
    return notes


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
        every = [each["distance"] for run in arm.runs for each in run.distances]
        losses = [abs(each["loss_branched"] - each["loss_scaled"]) for each in last]
        rows.append(
            (
                *heading_cells(arm, names),
                scientific_cell(max((each["distance"] for each in last), default=None)),
                scientific_cell(max(every, default=None)),
                scientific_cell(max(losses, default=None)),
                number_cell(max((each["step"] for each in last), default=None), 1, 0),
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
