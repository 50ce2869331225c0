"""Measuring BatchNorm statistics on training batches without changing anything else."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .following import keeping_modes

__all__ = ["calibrate_", "first_of"]


def first_of(model: nn.Module, batch: Any) -> Any:
    """Calls the model with a batch, or with its first element where the batch is a tuple or list."""
    x = batch[0] if isinstance(batch, tuple | list) else batch
    parameter = next(model.parameters(), None)
    if parameter is not None and isinstance(x, Tensor):
        x = x.to(parameter.device)
    return model(x)


@torch.no_grad()
def calibrate_(
    model: nn.Module,
    norms: Iterable[_BatchNorm],
    batches: Iterable[Any],
    *,
    num_batches: int | None = None,
    forward: Callable[[nn.Module, Any], Any] = first_of,
    group: dist.ProcessGroup | None = None,
) -> int:
    """Replaces the running statistics of some BatchNorms by averages over batches, in place.

    All other layers run in evaluation mode; every mode, momentum and random state is restored. Under `torch.distributed` the
    averages are taken over all ranks, so that they agree.

    Args:
        model: The model.
        norms: The BatchNorms to measure.
        batches: Batches of training data, for instance the data loader.
        num_batches: How many of them; all by default.
        forward: How to call the model with a batch.
        group: The process group of the ranks that train together.

    Returns:
        The number of batches used.

    Raises:
        ValueError: If there was no batch.
    """
    norms = list(norms)
    momenta = {norm: norm.momentum for norm in norms}
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
    used = 0
    try:
        with keeping_modes(model), torch.random.fork_rng(devices=list(devices)):
            model.eval()
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # a plain average over the batches
                norm.train()
            for batch in islice(iter(batches), num_batches):
                forward(model, batch)
                used += 1
    finally:
        for norm, momentum in momenta.items():
            norm.momentum = momentum
    if not used:
        raise ValueError("BatchNorm statistics cannot be measured without a batch: the iterable was empty.")
    if dist.is_available() and dist.is_initialized():
        size = dist.get_world_size(group)
        for norm in norms:
            for statistic in (norm.running_mean, norm.running_var):
                if statistic is not None:
                    dist.all_reduce(statistic, group=group)
                    statistic.div_(size)
    return used
