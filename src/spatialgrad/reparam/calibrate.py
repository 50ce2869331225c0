"""Measure BatchNorm statistics on training batches without changing anything else."""

from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from spatialgrad.torch_utils.distributed import all_reduce_, is_distributed
from spatialgrad.torch_utils.loaders import Forward, Replay, default_forward, move_to
from spatialgrad.torch_utils.modules import quiet_evaluation

__all__ = ["calibrate_"]


def calibrate_(
    model: nn.Module,
    norms: Iterable[_BatchNorm],
    data: Any,
    *,
    batches: int | None = None,
    forward: Forward | None = None,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Replace the running statistics of some BatchNorms by averages over batches, in place.

    All other layers run in evaluation mode. Modes, momenta and random states are restored. Under `torch.distributed`,
    statistics are averaged over all ranks.

    Args:
        model: The model.
        norms: The BatchNorms to measure.
        data: A loader, a list of batches, or one batch.
        batches: Number of batches to use; by default all of a list, and 2 of anything else.
        forward: ``forward(model, batch)``; by default ``model(x)`` or ``model(**batch)``.
        group: The processes that train together; by default all.

    Raises:
        ValueError: If `data` contains no batch.
    """
    norms = list(norms)
    momenta = {norm: norm.momentum for norm in norms}
    device = next(model.parameters()).device
    used = 0
    try:
        with Replay(data, batches) as replay, quiet_evaluation(model):
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # a plain average over the batches
                norm.training = True
            for batch in replay:
                (forward or default_forward)(model, move_to(batch, device))
                used += 1
    finally:
        for norm, momentum in momenta.items():
            norm.momentum = momentum
    if not used:
        raise ValueError("Cannot measure BatchNorm statistics: the data contains no batch.")
    if is_distributed(group):
        statistics = [s for norm in norms for s in (norm.running_mean, norm.running_var) if s is not None]
        all_reduce_([(statistic, "sum") for statistic in statistics], group)
        for statistic in statistics:
            statistic.div_(dist.get_world_size(group))
