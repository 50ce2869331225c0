"""Whether a training can start, and how long an epoch of it takes; nothing is written."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import torch

from spatialgrad.train.config import MachineConfig, TrainConfig
from spatialgrad.train.learner import build_learner
from spatialgrad.train.runtime import Runtime, make_fabric
from spatialgrad.train.tasks import find_task

SKIPPED, MEASURED = 2, 8
"""Number of batches that are not timed, because they allocate memory, and of those that are."""
LONGEST = 10.0
"""No further batch is timed after so many seconds."""


def check_training(config: TrainConfig, *, processes: int = 1) -> None:
    """Raise what `train` would raise before its first step: everything is built, on the CPU, and nothing is written.

    Args:
        config: Of a new run.
        processes: Number of processes that will train it.

    Raises:
        TrainError: If the training cannot start.
        DataError: If the data set is missing or damaged.
    """
    if processes == 1:
        make_fabric(config.machine)
    # A graphics processor would be occupied for as long as this process lives.
    runtime = Runtime(MachineConfig(accelerator="cpu"))
    task = find_task(config.task)(config, runtime.device)
    task.steps_per_epoch(processes)
    build_learner(config, runtime, task, _ignore, is_new=True)


def estimate_epoch(config: TrainConfig) -> float:
    """Seconds of an epoch with its evaluation and its share of the updates.

    Args:
        config: Of a training in one process.

    Raises:
        TrainError: If the training cannot start.
        DataError: If the data set is missing or damaged.
    """
    runtime = Runtime(config.machine)
    with runtime.training():
        task = find_task(config.task)(config, runtime.device)
        learner = build_learner(config, runtime, task, _ignore, is_new=True)
        learner.start()
        start = time.perf_counter()
        learner.before_epoch(config.scaling.warmup)
        update = (time.perf_counter() - start) / config.scaling.every
        learner.model.train()
        training = _seconds(learner.train_batches(0), lambda batch: learner.step(batch, 0)[0], learner.steps_per_epoch)
        learner.model.eval()
        batches = task.eval_batches()
        with torch.no_grad():
            evaluation = _seconds(batches, lambda batch: task.evaluate(learner.model, batch), len(batches))
    return update + training + evaluation


def _seconds(batches: Iterable[Any], use: Callable[[Any], Any], number: int) -> float:
    """Time in which so many batches are loaded and used: the first, which starts the loaders, and further medians."""
    seconds, begin = list[float](), time.perf_counter()
    before = begin
    for batch in islice(batches, SKIPPED + MEASURED):
        float(use(batch)["loss"])  # waits for the device
        now = time.perf_counter()
        seconds.append(now - before)
        before = now
        if now - begin > LONGEST:
            break
    return seconds[0] + (number - 1) * statistics.median(seconds[SKIPPED:] or seconds)


def _ignore(message: str) -> None:
    """For what the training itself will report."""
