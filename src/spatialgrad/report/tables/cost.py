"""Further tables: cost, additional metrics, and the distance between two networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from spatialgrad.report.results import ArmResults, StudyResults
from spatialgrad.report.statistics import summarize
from spatialgrad.report.tables.cells import (
    Cell,
    Column,
    Table,
    arm_notes,
    arm_table,
    empty,
    metric_name,
    number_cell,
    published_cell,
    scientific_cell,
    seeds_cell,
    summary_cell,
)
from spatialgrad.train.result import StepSeconds


def cost_table(study: StudyResults, arms: Sequence[ArmResults]) -> Table:
    """Time, multiply-accumulates, parameters and memory, beside the published values."""
    unit = study.record.cost_unit
    time, factor = time_unit([study.seconds(arm) for arm in arms])

    def step(arm: ArmResults) -> Cell:
        return _step_cell(arm.step_seconds, (study.reference(arm) or arm).step_seconds)

    def share(arm: ArmResults) -> Cell:
        total, updates = arm.mean("seconds"), arm.mean("update_seconds")
        return number_cell(100 * updates / total if total and updates is not None else None, 1, 1)

    def published_cost(arm: ArmResults) -> Cell:
        sources = arm.record.published
        costs = [each.cost if unit else None for each in sources]
        return published_cell(costs, sources, _ratios(arm, study.reference(arm) or arm))

    def measured(name: str, factor: float, decimals: int) -> Callable[[ArmResults], Cell]:
        return lambda arm: number_cell(arm.mean(name), factor, decimals)

    def published(name: str) -> Callable[[ArmResults], Cell]:
        return lambda arm: published_cell(
            [_millions(getattr(each, name)) for each in arm.record.published], arm.record.published
        )

    columns = [
        (Column(title="Time per step in ms (×\u00a0reference)"), step),
        (Column(title=f"{time.capitalize()} per run"), lambda arm: number_cell(study.seconds(arm), factor, 2)),
        (Column(title="Share of updates (%)"), share),
        (Column(title=f"{unit}, published (×\u00a0reference)"), published_cost),
        (Column(title="MACs in training (M)", foldable=True), measured("training_macs", 1e-6, 1)),
        (Column(title="MACs, published (M)", foldable=True), published("macs")),
        (Column(title="Parameters in training (M)", foldable=True), measured("training_parameters", 1e-6, 2)),
        (Column(title="Parameters, published (M)", foldable=True), published("parameters")),
        (Column(title="Peak memory (MB)"), measured("peak_memory_bytes", 2**-20, 0)),
    ]
    return arm_table("Cost", arms, columns, notes=_cost_notes(arms))


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


def metrics_tables(arms: Sequence[ArmResults]) -> list[Table]:
    """The additional metrics that the paper prints, if any."""
    metrics = list(dict.fromkeys(name for arm in arms for each in arm.record.published for name in each.other))

    def ours(metric: str) -> Callable[[ArmResults], Cell]:
        return lambda arm: summary_cell(summarize(list(arm.metric(metric).values())))

    def published(metric: str) -> Callable[[ArmResults], Cell]:
        return lambda arm: published_cell(
            [each.other.get(metric) for each in arm.record.published], arm.record.published
        )

    columns = [
        (Column(title=f"{metric_name(metric)}, {whose} (%)"), cell_of(metric))
        for whose, cell_of in (("ours", ours), ("published", published))
        for metric in metrics
    ]
    return [arm_table("Additional metrics", arms, columns)] if metrics else []


def distance_table(arms: Sequence[ArmResults]) -> Table:
    """Distance between networks that should stay equal."""

    def ends(arm: ArmResults) -> list[Mapping[str, float]]:
        return [run.distances[-1] for run in arm.runs if run.distances]

    def largest(values: Iterable[float]) -> Cell:
        return scientific_cell(max(values, default=None))

    columns: list[tuple[Column, Callable[[ArmResults], Cell]]] = [
        (Column(title="Final distance"), lambda arm: largest(each["distance"] for each in ends(arm))),
        (
            Column(title="Largest distance"),
            lambda arm: largest(each["distance"] for run in arm.runs for each in run.distances),
        ),
        (
            Column(title="Final difference in loss"),
            lambda arm: largest(abs(each["loss_branched"] - each["loss_scaled"]) for each in ends(arm)),
        ),
        (Column(title="Steps"), lambda arm: number_cell(max((e["step"] for e in ends(arm)), default=None), 1, 0)),
        (Column(title="Seeds"), seeds_cell),
    ]
    caption = "Two networks trained side by side: with branches, and with scaled gradients"
    return arm_table(caption, arms, columns, label="Setting", notes=["Largest values over seeds.", *arm_notes(arms)])


def _ratios(arm: ArmResults, reference: ArmResults) -> list[str]:
    base = next((each.cost for each in reference.record.published if each.source == "paper"), None)
    # Costs quoted from another paper were measured on another machine.
    return [
        f" (× {each.cost / base:.2f})" if base and each.cost is not None and each.source == "paper" else ""
        for each in arm.record.published
    ]


def _millions(value: float | None) -> float | None:
    return None if value is None else value / 1e6
