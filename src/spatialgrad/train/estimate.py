"""How long an epoch takes on this machine, from a few of its steps; nothing is written."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import torch

from spatialgrad.train.config import TrainConfig
from spatialgrad.train.learner import Learner
from spatialgrad.train.runtime import Runtime
from spatialgrad.train.start_weights import read_start_weights
from spatialgrad.train.tasks import find_task

SKIPPED, MEASURED = 2, 8
"""Number of batches that are not timed, because they allocate memory, and of those that are."""
LONGEST = 10.0
"""No further batch is timed after so many seconds."""


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
        learner = Learner(config, runtime, task, read_start_weights(config, lambda text: None))
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
