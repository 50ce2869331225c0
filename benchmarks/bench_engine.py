"""Overhead of the engine over a hand-written loop, and the effect of memory formats, precisions and compiling.

Claims: an epoch with its evaluation takes at most 3 % longer than a minimal PyTorch loop on the same network and
images, with progress bars, metrics, signals and checkpoints. With the engine's defaults (channels-last, freed memory is
kept), one thread trains at least 1.5 times as many images per second as that loop. Each variant has a process of its
own; their epochs are interleaved, and medians are compared. The share of checkpoints is bounded by the schedule (1 %)
and printed separately: a benchmark epoch is shorter than their interval.
Run: python benchmarks/bench_engine.py            (about 10 minutes on 2 cores)
     python benchmarks/bench_engine.py --threads 1 --images 1280
     python benchmarks/bench_engine.py --width 0.0625 --images 1024 --rounds 3
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from side_by_side import Opener, in_own_processes, interleaved_medians
from torch.nn import functional as F

from spatialgrad.data import eval_batches, train_batches
from spatialgrad.models import create_model
from spatialgrad.train import MachineConfig, MethodConfig, ModelConfig, TrainConfig, recipe
from spatialgrad.train.console import make_reporter
from spatialgrad.train.identity import Identity
from spatialgrad.train.learner import Learner
from spatialgrad.train.loop import CHECKPOINT_SHARE, Trainer
from spatialgrad.train.memory import keeping_freed_memory
from spatialgrad.train.run import Run
from spatialgrad.train.runtime import Runtime
from spatialgrad.train.signals import Stop
from spatialgrad.train.start_weights import StartWeights
from spatialgrad.train.tasks.classification import Classification

DEFAULT = "engine, its defaults"
EPOCHS = 1000
"""Of the schedule; only a few of them run."""


@contextmanager
def by_hand(config: TrainConfig) -> Iterator[Callable[[], None]]:
    """One epoch and its evaluation in a minimal loop."""
    torch.set_num_threads(config.machine.threads or 1)
    torch.manual_seed(0)
    dataset = Classification(config, torch.device("cpu")).dataset
    model = create_model(
        config.model.name, num_classes=dataset.num_classes, width=config.model.width, in_channels=dataset.channels
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    steps = EPOCHS * -(-len(dataset.train) // config.data.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    epoch = 0

    def run() -> None:
        nonlocal epoch
        model.train()
        total = right = 0.0
        for images, labels in train_batches(
            dataset, config.data.batch_size, seed=0, epoch=epoch, augmentation=dataset.augmentation
        ):
            optimizer.zero_grad()
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(labels)
            right += int((logits.argmax(1) == labels).sum())
        model.eval()
        with torch.no_grad():
            for images, labels in eval_batches(dataset, config.data.batch_size):
                logits = model(images)
                total += F.cross_entropy(logits, labels).item() * len(labels)
                right += int((logits.argmax(1) == labels).sum())
        epoch += 1

    yield run


@contextmanager
def by_engine(config: TrainConfig, *, keep_memory: bool = False) -> Iterator[Callable[[], None]]:
    """One epoch and its evaluation in the engine; whole trainings on a CPU keep the memory that is freed."""
    with opened(config) as trainer, keeping_freed_memory() if keep_memory else nullcontext():
        trainer.reporter.start(epochs=EPOCHS, steps_per_epoch=trainer.steps_per_epoch)
        try:
            yield partial(one_epoch, trainer)
        finally:
            trainer.reporter.stop()  # the bars have a thread of their own


@contextmanager
def opened(config: TrainConfig) -> Iterator[Trainer]:
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(config, Path(folder))
        yield trainer
        trainer.close()


def make_trainer(config: TrainConfig, folder: Path) -> Trainer:
    config = replace(config, out=folder)
    runtime = Runtime(config.machine)
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    reporter = make_reporter(console, first=True)
    learner = Learner(config, runtime, Classification(config, runtime.device), StartWeights())
    run, identity = Run.open(folder), Identity(config)
    run.claim(identity)
    return Trainer(run, identity, learner, reporter, Stop(), None)


def one_epoch(trainer: Trainer) -> None:
    with trainer.clock.measuring("training"):
        trainer._train_epoch()
        trainer._close_epoch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vgg11-linear")
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--processor-time", action="store_true", help="of all threads: whatever else the machine does")
    parser.add_argument("--no-options", action="store_true", help="compare only the engine and the loop")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = recipe("pocket")
    config = replace(
        config,
        model=ModelConfig(name=args.model, width=args.width),
        method=MethodConfig(name="baseline"),
        data=replace(config.data, limit=args.images, test_limit=max(100, args.images // 5)),
        budget=replace(config.budget, epochs=EPOCHS),
        machine=MachineConfig(accelerator="cpu", threads=args.threads),
    )
    # In the memory format of the loop, so that only the engine differs; its own default on CPUs is channels-last.
    contiguous = {"channels_last": False}
    settings: dict[str, dict[str, Any]] = {"engine": contiguous}
    if not args.no_options:
        settings |= {
            "engine, channels_last": {"channels_last": True},
            "engine, compile": {**contiguous, "compile": True},
            "engine, bf16-mixed": {**contiguous, "precision": "bf16-mixed"},
        }
    configs = {name: replace(config, machine=replace(config.machine, **values)) for name, values in settings.items()}
    variants: dict[str, Opener] = {"by hand": partial(by_hand, config)}
    variants |= {name: partial(by_engine, each) for name, each in configs.items()}
    variants[DEFAULT] = partial(by_engine, config, keep_memory=True)
    clock = time.process_time if args.processor_time else time.perf_counter
    with in_own_processes(variants, clock) as running:
        seconds = interleaved_medians(running, args.rounds, warmup=2)
    with opened(config) as trainer:
        trainer._save()
        save = trainer._save_took
    base, engine = seconds["by hand"], seconds["engine"]
    print(
        f"{args.model} (width {args.width:g}), {args.images:,} images of 32×32 and their evaluation, batch size "
        f"{config.data.batch_size}, {args.threads} threads, median of {args.rounds} interleaved epochs"
    )
    for name, value in seconds.items():
        against = "" if name == "by hand" else f"  {100 * (value / base - 1):+.1f} % over the loop"
        if name not in ("by hand", "engine"):
            against += f", {100 * (value / engine - 1):+.1f} % over the engine alone"
        if name == DEFAULT:
            against += f"; {base / value:.2f} times the loop's images per second"
        print(f"  {name:<22} {value:8.3f} s{against}")
    budget = config.budget.checkpoint_seconds
    share = save / max(budget, save / CHECKPOINT_SHARE)
    print(f"  a checkpoint takes {save * 1e3:.0f} ms: {100 * share:.2f} % of the time at the default interval")


if __name__ == "__main__":
    main()
