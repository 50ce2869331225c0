"""The metrics of a network on the test images, over all processes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from spatialgrad.torch_utils.distributed import all_reduce_
from spatialgrad.torch_utils.modules import gathering
from spatialgrad.train.engine.machine import Machine
from spatialgrad.train.errors import ConfigError
from spatialgrad.train.tasks import Sums, Task
from spatialgrad.train.tasks.base import add_


@torch.no_grad()
def evaluate(task: Task, machine: Machine, model: nn.Module, between: Callable[[], None]) -> dict[str, float]:
    """Test a network, which is in evaluation mode afterwards.

    Args:
        task: What is tested.
        machine: The processes that share the test images.
        model: Called by each process on its own.
        between: Called after every batch; it may raise.
    """
    batches = task.eval_batches(rank=machine.rank, world_size=machine.world_size)
    if machine.agree(int(len(batches) == 0)):
        raise ConfigError(f"{task.description} has too few test images for {machine.world_size} processes")
    rounds, source = machine.agree(len(batches)), iter(batches)
    sums: Sums = {}
    model.eval()
    with gathering(model) as gather:
        for _ in range(rounds):
            gather()
            batch = next(source, None)
            if batch is not None:
                add_(sums, task.evaluate(model, batch))
            between()
    return metrics_of_all(task, sums)


def metrics_of_all(task: Task, sums: Sums) -> dict[str, float]:
    """The metrics of every process's totals together."""
    totals = {name: value.clone() for name, value in sums.items()}
    all_reduce_([(totals[name], "sum") for name in sorted(totals)])
    return task.metrics(totals)
