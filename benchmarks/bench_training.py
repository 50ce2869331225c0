"""Overhead of scaling in a whole training that measures live, end to end.

Claim: with the appendix' schedule, training takes at most 0.3 % more processor time. Two equal networks train on the
same batches of the shipped images, one of them scaled, step by step in turns; halfway they change roles, because the
place of a network in memory makes more of a difference than scaling does. Each half has one update.
Run: python benchmarks/bench_training.py
     python benchmarks/bench_training.py --width 1 --batch-size 32
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path

import torch
from keeping import keep
from torch import Tensor, nn
from torch.nn import functional as F

from spatialgrad import Live, SpatialGradientScaling
from spatialgrad.data import load_dataset, train_batches
from spatialgrad.models import create_model

SCHEDULE = Live.paper()
UNMEASURED = 3
"""Steps at the beginning that do not count: torch prepares its kernels in them."""


@dataclass
class Times:
    """Processor seconds of the pairs of steps: plain, and scaled minus plain."""

    plain: list[float] = field(default_factory=list)
    ordinary: list[float] = field(default_factory=list)
    """Differences of steps outside updates."""
    observed: list[float] = field(default_factory=list)
    """Differences of the steps in which an update observes or ends."""
    updates: int = 0


def train(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> float:
    """Processor seconds of a step."""
    start = time.process_time()
    optimizer.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()
    return time.process_time() - start


def epochs(batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Augmented batches of the shipped images, epoch after epoch."""
    data = load_dataset("fashion-mnist-mini", image_size=32)
    for epoch in count():
        options = {"seed": 0, "epoch": epoch, "augmentation": data.augmentation, "drop_last": True}
        yield from train_batches(data, batch_size, **options)


def measure(args: argparse.Namespace) -> Times:
    """Train both networks, with roles changed halfway."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    models = [create_model(args.model, num_classes=10, width=args.width, in_channels=1) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9) for model in models]
    warmup = args.steps // 4
    update_steps = range(UNMEASURED + warmup, UNMEASURED + warmup + 2 * SCHEDULE.batches + 1)
    times = Times()
    for scaled in range(2):
        live = Live(at=(UNMEASURED + warmup,), every=SCHEDULE.every, batches=SCHEDULE.batches)
        sgs = SpatialGradientScaling(models[scaled], optimizers[scaled], live=live)
        for step, (images, labels) in enumerate(islice(epochs(args.batch_size), UNMEASURED + args.steps)):
            order = (0, 1) if step % 2 else (1, 0)
            took = {number: train(models[number], optimizers[number], images, labels) for number in order}
            if step < UNMEASURED:
                continue
            plain, with_scaling = took[1 - scaled], took[scaled]
            times.plain.append(plain)
            (times.observed if step in update_steps else times.ordinary).append(with_scaling - plain)
        times.updates += sgs.num_updates
        sgs.detach()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vgg16-slim")
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=400, help="steps of each half, at least 40")
    parser.add_argument("--keep", type=Path, help="a JSON file for the figures that pages quote")
    args = parser.parse_args()
    times = measure(args)
    step = statistics.fmean(times.plain)
    # 95 % interval of a mean, and the median, which a disturbed step does not move.
    mean, median = statistics.fmean(times.ordinary), statistics.median(times.ordinary)
    error = 1.96 * statistics.stdev(times.ordinary) / len(times.ordinary) ** 0.5
    update = sum(times.observed) / times.updates
    whole = 100 * (median + update / SCHEDULE.every) / step
    print(
        f"{args.model} (width {args.width:g}), batch {args.batch_size}, {len(times.plain)} interleaved pairs of steps, "
        f"{times.updates} updates"
    )
    print(f"  plain step {1e3 * step:.1f} ms of processor time")
    print(f"  scaled step {100 * mean / step:+.2f} ± {100 * error / step:.2f} % (median {100 * median / step:+.2f} %)")
    print(f"  an update adds {update:.3f} s: {update / step:.1f} steps, once in {SCHEDULE.every}")
    print(f"  whole training with the appendix' schedule {whole:+.2f} ± {100 * error / step:.2f} %")
    if args.keep:
        figures = {
            "step_ms": 1e3 * step,
            "scaled_percent": 100 * mean / step,
            "scaled_error_percent": 100 * error / step,
            "scaled_median_percent": 100 * median / step,
            "update_steps": update / step,
            "training_percent": whole,
        }
        keep(args.keep, f"live training at width {args.width:g}", figures)


if __name__ == "__main__":
    main()
