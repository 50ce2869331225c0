"""When scaling helps, for the pages: its gain by the length of the training, and what it does on training images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from results_own import NOT_YET, with_interval

from spatialgrad.report.results import ArmResults
from spatialgrad.report.statistics import compare_paired
from spatialgrad.report.tables.cells import signed

if TYPE_CHECKING:
    from results import Row


def training_accuracies(arm: ArmResults, metric: str) -> dict[int, float]:
    """The metric on training images in the last epoch, by seed, of the finished runs."""
    curves = {run.seed: run.curves[f"train_{metric}"][1] for run in arm.runs if run.value is not None}
    return {seed: values[-1] for seed, values in curves.items() if values}


def length_sentence(rows: list[Row]) -> str:
    """The gain of VGG-11 on CIFAR-100 by the number of epochs, and by how much the longest training gains more."""
    of = [row for row in rows if row.study in ("cifar", "sensitivity") and row.dataset.startswith("CIFAR-100")]
    of = sorted(of, key=lambda row: row.epochs)
    gains = [f"{with_interval(row.comparison)} points in {row.epochs} epochs ({row.comparison.n} seeds)" for row in of]
    said = f"VGG-11 on the 20k/5k subset of CIFAR-100 gains {' and '.join(gains)}"
    growth = compare_paired(of[-1].gains, of[0].gains) if len(of) > 1 else None
    return said + (
        "." if growth is None else f"; paired by seed, the longer training gains {with_interval(growth)} more."
    )


def fit_table(rows: list[Row]) -> str:
    """Every comparison, with the most overfitted plain network first."""
    lines = [
        "| data set | network | epochs | plain: training accuracy (%) | minus test accuracy "
        "| SGS: change on training images | change on test images |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: row.gap, reverse=True):
        lines.append(
            f"| {row.dataset} | {row.network} | {row.epochs} | {row.plain_training.mean:.2f} | {signed(row.gap)} "
            f"| {with_interval(row.training)} | {with_interval(row.comparison)} |"
        )
    return "\n".join(lines)


def fit_fact(rows: list[Row]) -> str:
    """In how many comparisons the accuracy on training images was lower, and that on test images higher."""
    if not rows:
        return f"The accuracy on training images: {NOT_YET}."
    changes = [row.training.difference for row in rows]
    lower, higher = sum(each < 0 for each in changes), sum(row.comparison.difference > 0 for row in rows)
    return (
        f"Scaling lowered the accuracy on *training* images in {lower} of {len(rows)} comparisons, by "
        f"{-max(each for each in changes if each < 0):.2f} to {-min(changes):.2f} points, and raised it on test images "
        f"in {higher}."
    )
