"""Training overhead of each method: step time and peak memory as ratios to the plain network.

Claim: SGS costs as much as plain training, about a third of DBB and DyRep. The steps of all methods are interleaved and
measured in processor time on one thread, so that other work on the machine does not count. Printed is the median over
rounds of the ratio to the plain step of the same round. Peak memory is that of two steps in a fresh process, minus its
memory before the model was built. DyRep is grown in layers that give it the paper's average cost on CIFAR-10 (674 M
multiply-accumulates, 25.5 M parameters). The SGS step includes its multiplication; the last line adds its updates.
Run: python benchmarks/bench_reparam.py
     python benchmarks/bench_reparam.py --keep results/cost.json    (what README's and docs' tables of cost quote)
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
from keeping import processor
from torch import nn
from torch.nn import functional as F

from spatialgrad import SpatialGradientScaling
from spatialgrad.models import create_model
from spatialgrad.reparam import (
    ACB,
    DBB,
    Count,
    QARepVGG,
    Reparameterization,
    RepOpt,
    RepOptScaling,
    RepVGG,
    count,
    reparameterize_,
    searched_scales,
)
from spatialgrad.reparam.dyrep.growth import grow_

CONFIGS: dict[str, Reparameterization] = {
    "ACB": ACB(),
    "RepVGG": RepVGG(),
    "QARepVGG": QARepVGG(),
    "DBB": DBB(),
    "RepOpt search": RepOpt(),
}
VARIANTS = ("plain", "SGS", "RepOpt", "RepOpt search", "ACB", "RepVGG", "QARepVGG", "DBB", "DyRep")
# The layers that DyRep grows differ from run to run; these give 672 M and 25.4 M.
GROWN = tuple(f"features.{number}" for number in (0, 7, 10, 14, 17, 20, 24, 34))
SCHEDULE = (5 * 391, 2)  # SGS: steps between two updates, batches per update


class Training:
    """A model of one method and its optimizer, for steps on a single batch."""

    def __init__(self, method: str, args: argparse.Namespace) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(args.batch_size, 3, args.image_size, args.image_size, generator=generator)
        self.labels = torch.randint(0, 10, (args.batch_size,), generator=generator)
        torch.manual_seed(0)
        self.model: nn.Module = create_model("vgg16-slim", num_classes=10, width=args.width)
        if method == "DyRep":
            for number, name in enumerate(GROWN):
                conv = cast("nn.Conv2d", self.model.get_submodule(name))
                grow_(self.model, conv, seed=number, data=self.images[:2])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
        if method == "SGS":
            self.sgs = SpatialGradientScaling(self.model, self.optimizer)
            self.sgs.update(self.images[:2])
        elif method == "RepOpt":
            scales = searched_scales(reparameterize_(copy.deepcopy(self.model), RepOpt()))
            self.repopt = RepOptScaling(self.model, self.optimizer, scales)
        elif method in CONFIGS:
            reparameterize_(self.model, CONFIGS[method], optimizer=self.optimizer)

    def cost(self) -> Count:
        """Return the numbers of parameters and multiply-accumulates."""
        return count(self.model, tuple(self.images.shape[1:]))

    def step(self) -> None:
        """Train for one step."""
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(self.images), self.labels).backward()
        self.optimizer.step()


def status(field: str) -> int:
    return 1024 * int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # type: ignore[index]


def peak_bytes(method: str, args: argparse.Namespace) -> int:
    """Return the peak memory of two steps in bytes, minus the memory before the model was built."""
    warm = argparse.Namespace(**{**vars(args), "width": 0.0625, "batch_size": 2})
    Training(method, warm).step()  # loads and compiles everything that is needed once
    before = status("VmRSS")
    training = Training(method, args)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak: growing may need more than training
    training.step()
    training.step()
    return status("VmHWM") - before


def seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def peak_bytes_in_new_process(method: str) -> int:
    # glibc would keep freed blocks otherwise, and their reuse would hide in the resident memory.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, *sys.argv, "--memory-of", method]
    return int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--keep", type=Path, help="a file for the times of every round, as JSON")
    parser.add_argument("--memory-of", choices=VARIANTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)  # so that processor time is step time
    if args.memory_of:
        print(peak_bytes(args.memory_of, args))
        return
    memory = {method: peak_bytes_in_new_process(method) / 2**20 for method in VARIANTS}
    trainings = {method: Training(method, args) for method in VARIANTS}
    for training in trainings.values():
        training.step()
    rounds = [{method: seconds(training.step) for method, training in trainings.items()} for _ in range(args.rounds)]
    sgs, images = trainings["SGS"].sgs, trainings["SGS"].images
    update = statistics.median(seconds(lambda: sgs.update(images)) for _ in range(3))

    print(
        f"vgg16-slim (width {args.width:g}), batch {args.batch_size}, {args.image_size}×{args.image_size} images, "
        f"float32, {args.rounds} interleaved rounds; torch {torch.__version__}, 1 thread of {processor()}"
    )
    print(f"{'method':<14}{'parameters':>12}{'MACs':>10}{'step':>12}{'× plain':>9}{'peak memory':>14}{'× plain':>9}")
    for method, training in trainings.items():
        cost = training.cost()
        step = statistics.median(times[method] for times in rounds)
        ratio = statistics.median(times[method] / times["plain"] for times in rounds)
        print(
            f"{method:<14}{cost.parameters / 1e6:>10.1f} M{cost.macs / 1e6:>8.0f} M{step * 1e3:>9.0f} ms{ratio:>9.2f}"
            f"{memory[method]:>10.0f} MiB{memory[method] / memory['plain']:>9.2f}"
        )
    if args.keep:
        keep(args, trainings, rounds, memory, update)
    interval, batches = SCHEDULE
    print(f"SGS with {batches} batches of updates every {interval} steps, {update * 1e3:.0f} ms per batch:", end=" ")
    extra = batches * update / interval
    shares = {
        method: statistics.median((times["SGS"] + extra) / times[method] for times in rounds)
        for method in ("plain", "DBB", "DyRep")
    }
    print(", ".join(f"{share:.2f} × {method}" for method, share in shares.items()))


def keep(
    args: argparse.Namespace,
    trainings: dict[str, Training],
    rounds: list[dict[str, float]],
    memory: dict[str, float],
    update: float,
) -> None:
    """Write what was measured into a file."""
    methods = {}
    for method, training in trainings.items():
        cost = training.cost()
        methods[method] = {
            "parameters": cost.parameters,
            "macs": cost.macs,
            "seconds": [round(times[method], 4) for times in rounds],
            "peak_mib": round(memory[method]),
        }
    values = {
        "command": "python benchmarks/bench_reparam.py --keep results/cost.json",
        "measured": "processor time of a training step on one thread, interleaved rounds",
        "network": f"vgg16-slim, width {args.width:g}, batch {args.batch_size}, {args.image_size}×{args.image_size}",
        "machine": {"torch": torch.__version__, "cpu": processor()},
        "update_seconds_per_batch": round(update, 4),
        "methods": methods,
    }
    args.keep.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
