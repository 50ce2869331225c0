"""How long OpenMP's threads should spin while they wait: training steps alone, and beside a program that uses one core.

Run: python benchmarks/bench_waiting.py (on an otherwise quiet machine)
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from side_by_side import in_own_processes, interleaved_medians

from spatialgrad.cli.main import SPINS

SETTINGS = {
    "libgomp's default": {},
    f"GOMP_SPINCOUNT={SPINS}": {"GOMP_SPINCOUNT": SPINS},
    "OMP_WAIT_POLICY=PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
}


@contextmanager
def training(variables: dict[str, str], steps: int) -> Iterator[Callable[[], None]]:
    """Steps of the desk recipe's VGG-11, one thread per core, in a process that has not imported torch yet."""
    os.environ.update(variables)
    import torch
    from torch.nn import functional as F

    from spatialgrad.models import create_model

    torch.set_num_threads(os.cpu_count() or 1)
    last = torch.channels_last
    model = create_model("vgg11-linear", num_classes=100, width=0.25).to(memory_format=last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(128, 3, 32, 32).contiguous(memory_format=last), torch.randint(0, 100, (128,))

    def run() -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()

    yield run


def use_one_core() -> None:
    """Compute forever, as a program of another session: Linux divides the cores between sessions, not threads."""
    os.setsid()
    while True:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="training steps per round")
    args = parser.parse_args()
    print(f"vgg11-linear at a quarter of its width, batch 128, {os.cpu_count()} threads, seconds of a step")
    openers = {name: partial(training, variables, args.steps) for name, variables in SETTINGS.items()}
    with in_own_processes(openers) as variants:
        alone = interleaved_medians(variants, args.rounds)
        other = multiprocessing.get_context("spawn").Process(target=use_one_core, daemon=True)
        other.start()
        beside = interleaved_medians(variants, args.rounds)
        other.kill()
    print(f"  {'':<24} {'alone':>8} {'beside a busy core':>20}")
    for name in SETTINGS:
        print(f"  {name:<24} {alone[name] / args.steps:>8.3f} {beside[name] / args.steps:>20.3f}")
    ours, default = f"GOMP_SPINCOUNT={SPINS}", "libgomp's default"
    print(f"{ours}: {alone[ours] / alone[default]:.2f} × the default's time alone, ", end="")
    print(f"{beside[ours] / beside[default]:.2f} × beside a busy core")


if __name__ == "__main__":
    main()
