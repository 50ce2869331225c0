"""Overhead of scaling: of a training step, and of the paper's schedules end to end.

Claim: a step costs at most 1 % more, and so does a whole training with its updates. Steps are interleaved, and the
median of the paired ratios counts; the schedules are calculated from the measured step and update.
Run: python benchmarks/bench_step.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from keeping import keep
from torch.nn import functional as F

from spatialgrad import SpatialGradientScaling
from spatialgrad.models import create_model

# name: (steps between two updates on 50,000 images with batch 128, batches per update)
SCHEDULES = {
    "Table 1 (every 30 epochs, 20 batches)": (30 * 391, 20),
    "appendix (every 5 epochs, 2 batches)": (5 * 391, 2),
}


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vgg16-slim")
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--apply", default="gradient", choices=["gradient", "update"])
    parser.add_argument("--keep", type=Path, help="a JSON file for the figures that pages quote")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = create_model(args.model, num_classes=100, width=args.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sgs = SpatialGradientScaling(model, optimizer, apply=args.apply)
    x, y = torch.rand(128, 3, 32, 32), torch.randint(0, 100, (128,))

    def step(scaled: bool) -> float:
        # One model for both: the memory location of a copy makes more of a difference than scaling does.
        sgs.attach(optimizer) if scaled else sgs.detach()
        start = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        return time.perf_counter() - start

    update = statistics.median(seconds(lambda: sgs.update([x, x])) for _ in range(3)) / 2
    ratios, times = [], []
    for turn in range(args.rounds + 3):
        took = {scaled: step(scaled) for scaled in ((True, False) if turn % 2 else (False, True))}
        if turn >= 3:
            ratios.append(took[True] / took[False])
            times.append(took[False])
    sgs.attach(optimizer)
    # The hook alone: a difference of 1 % drowns in the noise of whole steps.
    hook = statistics.median(seconds(lambda: sgs._hooks[0]._scale_gradients()) for _ in range(args.rounds))
    base = statistics.median(times)
    ratio = statistics.median(ratios)
    print(
        f"{args.model} (width {args.width:g}), batch 128, apply={args.apply!r}, "
        f"{args.rounds} interleaved pairs of steps"
    )
    # The median of n values has a standard error of about 1.25 σ / √n.
    error = 1.25 * statistics.stdev(ratios) / len(ratios) ** 0.5
    print(
        f"  step without scaling {base * 1e3:.1f} ms; with it {100 * (ratio - 1):+.2f} ± {100 * error:.2f} % "
        "(median of paired ratios ± its standard error)"
    )
    if args.apply == "gradient":
        print(f"  the multiplication alone takes {hook * 1e3:.2f} ms: {100 * hook / base:.2f} % of a step")
    print(f"  an update takes {update * 1e3:.0f} ms per batch: {update / base:.1f} steps")
    schedules = {}
    for name, (interval, batches) in SCHEDULES.items():
        cost = (ratio - 1) + batches * update / (interval * base)
        exact = hook / base + batches * update / (interval * base)
        print(
            f"  {name}: {100 * cost:+.2f} % end to end "
            f"({100 * exact:.2f} % from the multiplication and the updates alone)"
        )
        schedules[name] = round(100 * exact, 4)
    if args.keep:
        figures = {
            "multiplication_percent": 100 * hook / base,
            "step_percent": 100 * (ratio - 1),
            "step_error_percent": 100 * error,
            "step_ms": 1e3 * base,
            "schedules_percent": schedules,
        }
        keep(args.keep, f"step at width {args.width:g}", figures)


if __name__ == "__main__":
    main()
