"""INT8: what quantization changes, and how far the weights of a layer range."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from spatialgrad.report.results import ArmResults, StudyResults
from spatialgrad.report.statistics import Comparison, compare_paired, summarize
from spatialgrad.report.tables.cells import (
    Cell,
    Column,
    Table,
    empty,
    group_names,
    heading_cells,
    heading_columns,
    number_cell,
    signed,
    spread,
)
from spatialgrad.train.result import INT8_METRICS


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
    names = group_names(arms)
    columns = list(heading_columns(names, "Method"))
    for what in ("INT8", "INT8, one scale per layer"):
        columns += [Column(title=f"{what} (%)"), Column(title=f"{what}: change [95\u00a0%\u00a0CI]")]
    columns += [Column(title="Weight range, median layer"), Column(title="Weight range, widest layer")]
    rows = []
    for arm in arms:
        cells = list(heading_cells(arm, names))
        for suffix, change in int8_changes(study, arm).items():
            summary = summarize(list(arm.metric(f"{study.record.metric}_{suffix}").values()))
            cells.append(empty() if summary is None else Cell(lines=(spread(summary),), sort=summary.mean))
            cells.append(_change_cell(change))
        ranges = list(weight_ranges(arm).values())
        cells += [number_cell(of(ranges) if ranges else None, 1, 1) for of in (statistics.median, max)]
        rows.append(tuple(cells))
    notes = (
        "INT8: the merged network, quantized by onnxruntime with one scale per output channel, or per layer. Change: "
        "mean difference from the same network in float, in percentage points, over seeds.",
        "Weight range: largest absolute weight of a layer, BatchNorm included, in standard deviations of its weights.",
    )
    return [Table(caption="INT8", columns=tuple(columns), rows=tuple(rows), headers=len(names) + 1, notes=notes)]


def _change_cell(change: Comparison | None) -> Cell:
    if change is None:
        return empty()
    interval = () if change.low is None or change.high is None else (f"[{signed(change.low)}, {signed(change.high)}]",)
    return Cell(lines=(signed(change.difference), *interval), sort=change.difference)
