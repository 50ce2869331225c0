"""What a live update adds to the training of a compiled model: observed steps uncompiled, or compiled again.

Compiled code does not see new hooks. The package therefore runs the observed steps uncompiled. The alternative is to
let the compiler guard on hooks: it compiles again, with a graph break at each convolution, and returns to the first
code when the hooks are gone. The same training is measured with each, in processor time that includes the C++
compiler's.
Run: OMP_NUM_THREADS=1 python benchmarks/bench_live_compile.py
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before torch is imported: no code from earlier runs, and no workers whose time is not counted.
os.environ.update(TORCHINDUCTOR_FORCE_DISABLE_CACHES="1", TORCHINDUCTOR_COMPILE_THREADS="1")

import torch
import torch._dynamo as dynamo
from keeping import keep
from spatialgrad.sgs.passes import TrainingPassHook
from torch.nn import functional as F

from spatialgrad import Live, SpatialGradientScaling
from spatialgrad.models import create_model
from spatialgrad.sgs import live

SCHEDULE = Live(at=(6,), every=12, batches=2)
UPDATES = 3


def clock() -> float:
    """Processor seconds of this process and of the processes that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@contextlib.contextmanager
def recompiling() -> Iterator[None]:
    """Let compiled code see new hooks; the hooks themselves are never compiled."""
    disable: Any = torch.compiler.disable
    uncompiled, call = live.nothing_compiled, TrainingPassHook.__call__
    live.nothing_compiled = contextlib.nullcontext  # type: ignore[assignment]
    TrainingPassHook.__call__ = disable(call)  # type: ignore[method-assign]
    try:
        with dynamo.config.patch(skip_nnmodule_hook_guards=False, recompile_limit=64):
            yield
    finally:
        live.nothing_compiled = uncompiled
        TrainingPassHook.__call__ = call  # type: ignore[method-assign]


def train(width: float, batch_size: int) -> dict[str, Any]:
    """Train through some updates; the seconds of all steps, and the number of graphs that each has compiled."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = create_model("vgg11-linear", num_classes=10, width=width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.rand(batch_size, 3, 32, 32), torch.randint(0, 10, (batch_size,))
    compiled: Any = torch.compile(model)
    seconds, graphs = [], []
    stats = dynamo.utils.counters["stats"]
    with SpatialGradientScaling(model, optimizer, live=SCHEDULE) as sgs:
        for _ in range(SCHEDULE.every * (UPDATES - 1) + 2 * SCHEDULE.batches + 2):
            start, before = clock(), stats["unique_graphs"]
            optimizer.zero_grad()
            F.cross_entropy(compiled(x), y).backward()
            optimizer.step()
            seconds.append(clock() - start)
            graphs.append(stats["unique_graphs"] - before)
        if sgs.num_updates != UPDATES:
            raise RuntimeError(f"{sgs.num_updates} updates instead of {UPDATES}.")
    return summary(seconds, graphs)


def summary(seconds: list[float], graphs: list[int]) -> dict[str, Any]:
    """What the first steps and each update cost beyond steps without one."""
    starts = [SCHEDULE.warmup, *(SCHEDULE.every * number for number in range(1, UPDATES))]
    # With the step after it, which finds the code without hooks again.
    spans = [range(start, start + 2 * SCHEDULE.batches + 1) for start in starts]
    inside = {step for span in spans for step in span}
    step = statistics.median(value for number, value in enumerate(seconds) if number not in inside and number > 1)
    return {
        "compiled step": step,
        "first step": seconds[0],
        "updates": [sum(seconds[number] for number in span) - len(span) * step for span in spans],
        "graphs": [graphs[0], *(sum(graphs[number] for number in span) for span in spans)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--keep", type=Path, help="a JSON file for the figures that pages quote")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = {"uncompiled": train(args.width, args.batch_size)}
    with recompiling():
        found["compiled again"] = train(args.width, args.batch_size)
    print(f"VGG-11 (width {args.width:g}), batch {args.batch_size}, inductor, processor time of 1 thread")
    for name, values in found.items():
        updates = " ".join(f"{value:7.2f}" for value in values["updates"])
        print(
            f"observed steps {name}: {values['compiled step']:.3f} s for a step without update, "
            f"{values['first step']:.1f} s for the first; added by each update: {updates} s; graphs compiled by the "
            f"first step and by each update: {values['graphs']}"
        )
    if args.keep:
        keep(args.keep, "live compile", found)


if __name__ == "__main__":
    main()
