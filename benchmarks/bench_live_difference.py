"""Difference between live and `update(loader)` in every G of a trained network, per layer.

Both measure the run's own training batches, augmented as in its training. The reference is `update(loader)`, in
evaluation mode. Beside it:

- other batches: `update(loader)` with other batches, which is the noise of the measurement
- live, same batches: the reference's batches in training mode, first for the ranges and then for the counts
- live: other batches in training mode, some for the ranges and others for the counts, as in training

Weights do not change. Each row is the largest and the mean absolute difference of the elements of one G, over all draws
of batches; G has mean 1.
Run: SPATIALGRAD_DATA=... python benchmarks/bench_live_difference.py RUN
"""

from __future__ import annotations

import argparse
import copy
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from keeping import keep
from torch import Tensor, nn

from spatialgrad import Live, SpatialGradientScaling
from spatialgrad.train import load_model
from spatialgrad.train.run import Run
from spatialgrad.train.tasks import TASKS
from spatialgrad.train.tasks.base import Task

COLUMNS = ("other batches", "live, same batches", "live")


def updated(model: nn.Module, task: Task, batches: Sequence[Any]) -> dict[str, Tensor]:
    """Return every G by `update(loader)`."""
    with SpatialGradientScaling(model, _still(model), task.config.scaling.k, apply="gradient") as sgs:
        return sgs.update(list(batches), forward=task.forward)


def measured_live(model: nn.Module, task: Task, batches: Sequence[Any]) -> dict[str, Tensor]:
    """Return every G by a live update: ranges from the first half of the batches, counts from the second."""
    model = copy.deepcopy(model).train()
    optimizer = _still(model)
    schedule = Live(at=(0,), every=len(batches), batches=len(batches) // 2)
    with SpatialGradientScaling(model, optimizer, task.config.scaling.k, live=schedule, apply="gradient") as sgs:
        for batch in batches:
            optimizer.zero_grad()
            task.loss(model, batch)[0].backward()
            optimizer.step()
        if sgs.num_updates != 1:
            raise RuntimeError("The update did not end.")
        return sgs.scalings


def differences(model: nn.Module, task: Task, *, batches: int, draws: int) -> dict[str, dict[str, Tensor]]:
    """Return the absolute differences from the reference, all draws stacked, by column and layer."""
    found: dict[str, dict[str, list[Tensor]]] = {column: {} for column in COLUMNS}
    epoch = task.train_batches(task.config.budget.epochs)
    if len(epoch) < 4 * batches * draws:
        raise SystemExit(f"An epoch of this run has {len(epoch)} batches, but 4 × --batches × --draws are needed.")
    stream = iter(epoch)
    for _ in range(draws):
        same, other, *rest = (list(itertools.islice(stream, batches)) for _ in range(4))
        reference = updated(model, task, same)
        variants = (
            updated(model, task, other),
            measured_live(model, task, [*same, *same]),
            measured_live(model, task, [*rest[0], *rest[1]]),
        )
        for column, scalings in zip(COLUMNS, variants, strict=True):
            for name, G in scalings.items():
                found[column].setdefault(name, []).append((G - reference[name]).abs())
    return {column: {name: torch.stack(each) for name, each in rows.items()} for column, rows in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--batches", type=int, default=2, help="batches for the ranges, and as many for the counts")
    parser.add_argument("--draws", type=int, default=5, help="repetitions, each with other batches")
    parser.add_argument("--keep", type=Path, help="a JSON file for the figures that pages quote")
    args = parser.parse_args()
    config = replace(Run.open(args.run).config, out=args.run)
    task = TASKS[config.task](config, torch.device("cpu"))
    model = load_model(args.run)
    table = differences(model, task, batches=args.batches, draws=args.draws)
    print(
        f"{config.model.name} (width {config.model.width:g}), {config.budget.epochs} epochs on {config.data.name}, "
        f"{args.batches} batches of {config.data.batch_size} images, {args.draws} draws: largest and mean |ΔG|"
    )
    reference = updated(model, task, list(itertools.islice(task.train_batches(0), args.batches)))
    print(f"{'layer':<24} {'centre':>6}" + "".join(f"  {column:>20}" for column in COLUMNS))
    for name, G in reference.items():
        centre = G[tuple(side // 2 for side in G.shape)]
        cells = "".join(f"  {'{:.3f}  {:.3f}'.format(*_summary(table[column][name])):>20}" for column in COLUMNS)
        print(f"{name:<24} {centre:6.2f}{cells}")
    figures = {}
    for column in COLUMNS:
        rows = [_summary(values) for values in table[column].values()]
        largest, mean = max(row[0] for row in rows), sum(row[1] for row in rows) / len(rows)
        figures[column] = {"largest": round(largest, 4), "mean": round(mean, 4)}
        print(f"{column}: at most {largest:.3f}, {mean:.3f} on average over the layers")
    if args.keep:
        keep(args.keep, "live difference", figures)


def _still(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer that changes nothing."""
    return torch.optim.SGD(model.parameters(), lr=0.0)


def _summary(values: Tensor) -> tuple[float, float]:
    return float(values.max()), float(values.mean())


if __name__ == "__main__":
    main()
