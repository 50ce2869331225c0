"""INT8: what quantization changes, and how far the weights of a layer range."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from spatialgrad.report.results import ArmResults, StudyResults
from spatialgrad.report.statistics import Comparison, compare_paired, summarize
from spatialgrad.report.tables.cells import (
    Cell,
    Column,
    Table,
    arm_table,
    empty,
    interval,
    number_cell,
    signed,
    summary_cell,
)
from spatialgrad.train.result import INT8_METRICS

NOTES = (
    "INT8: the merged network, quantized by onnxruntime with one scale per output channel, or per layer. Change: "
    "mean difference from the same network in float, in percentage points, over seeds.",
    "Weight range: largest absolute weight of a layer, BatchNorm included, in standard deviations of its weights.",
)


def int8_changes(study: StudyResults, arm: ArmResults) -> dict[str, Comparison | None]:
    """The change of the study's metric by quantization, paired by seed, by the suffix of the metric in INT8."""
    return {
        suffix: compare_paired(arm.metric(f"{study.record.metric}_{suffix}"), arm.values) for suffix in INT8_METRICS
    }


def weight_ranges(arm: ArmResults) -> dict[str, float]:
    """Largest absolute weight of each layer in standard deviations, averaged over the runs."""
    found: dict[str, list[float]] = {}
    for result in arm.results:
        for name, value in (result.weight_ranges or {}).items():
            found.setdefault(name, []).append(value)
    return {name: statistics.fmean(values) for name, values in found.items()}


def int8_tables(study: StudyResults, arms: Sequence[ArmResults]) -> list[Table]:
    """Accuracy in INT8, its difference from the float network's, and the range of weights; none if not measured."""
    if not any(weight_ranges(arm) for arm in arms):
        return []

    def values(suffix: str) -> Callable[[ArmResults], Cell]:
        return lambda arm: summary_cell(summarize(list(arm.metric(f"{study.record.metric}_{suffix}").values())))

    def change(suffix: str) -> Callable[[ArmResults], Cell]:
        return lambda arm: _change_cell(int8_changes(study, arm)[suffix])

    def ranges(of: Callable[[list[float]], float]) -> Callable[[ArmResults], Cell]:
        return lambda arm: number_cell(of(found) if (found := list(weight_ranges(arm).values())) else None, 1, 1)

    columns = []
    for suffix, what in zip(INT8_METRICS, ("INT8", "INT8, one scale per layer"), strict=True):
        columns += [(Column(title=f"{what} (%)"), values(suffix))]
        columns += [(Column(title=f"{what}: change [95\u00a0%\u00a0CI]"), change(suffix))]
    columns += [
        (Column(title="Weight range, median layer"), ranges(statistics.median)),
        (Column(title="Weight range, widest layer"), ranges(max)),
    ]
    return [arm_table("INT8", arms, columns, notes=NOTES)]


def _change_cell(change: Comparison | None) -> Cell:
    if change is None:
        return empty()
    lines = (signed(change.difference), interval(change))
    return Cell(lines=tuple(filter(None, lines)), sort=change.difference)
