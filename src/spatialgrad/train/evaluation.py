"""Metrics over all processes, and from the last step to the result: merge, evaluate the merged network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from spatialgrad.train.errors import DeployError
from spatialgrad.train.runtime import Runtime
from spatialgrad.train.tasks.base import Sums, Task, add_
from spatialgrad.utils.distributed import all_reduce_
from spatialgrad.utils.modules import gathering

TOLERANCE = {"32-true": 0.002, "64-true": 0.002}
"""Largest change of the headline metric by merging: rounding flips a few images on the decision boundary."""
COARSE_TOLERANCE = 0.02
"""The same in 16 bits."""
FLIPPED_IMAGES = 2
"""Number of images that may flip in any case, however few there are."""


@torch.no_grad()
def evaluate(task: Task, runtime: Runtime, model: nn.Module, between: Callable[[int], None]) -> dict[str, float]:
    """Evaluate a network on the test images; it is in evaluation mode afterwards.

    Args:
        task: Provides the test images and the metrics.
        runtime: The processes that share the test images.
        model: Called by each process on its own.
        between: Called with the number of batches so far after each, equally often in all processes; it may raise.
    """
    batches = task.eval_batches(rank=runtime.rank, world_size=runtime.world_size)
    rounds, source = runtime.agree(len(batches)), iter(batches)
    sums: Sums = {}
    model.eval()
    with gathering(model) as gather:
        for number in range(rounds):
            gather()
            batch = next(source, None)
            if batch is not None:
                add_(sums, task.evaluate(model, batch))
            between(number + 1)
    return metrics_of_all(task, sums)


def metrics_of_all(task: Task, sums: Sums) -> dict[str, float]:
    """The metrics of the totals of all processes."""
    totals = {name: value.clone() for name, value in sums.items()}
    all_reduce_([(totals[name], "sum") for name in sorted(totals)])
    return task.metrics(totals)


def check_agreement(trained: Mapping[str, Any], merged: Mapping[str, Any], task: Task, precision: str) -> None:
    """Raise if the metrics of the merged network differ from those of the trained one.

    Raises:
        DeployError: If the headline metric changed by more than rounding explains.
    """
    before, after = trained[task.headline], merged[task.headline]
    allowed = max(TOLERANCE.get(precision, COARSE_TOLERANCE), FLIPPED_IMAGES / task.num_test)
    if not abs(before - after) <= allowed:  # also for NaN
        raise DeployError(
            f"{task.headline} was {before:.4f} before the branches were merged and is {after:.4f} after it; rounding "
            f"explains at most {allowed:.4f}. The checkpoint holds the network with its branches."
        )
