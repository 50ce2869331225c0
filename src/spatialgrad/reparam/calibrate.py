"""Measure BatchNorm statistics on training batches without changing anything else."""

from collections.abc import Generator, Iterable
from contextlib import closing
from typing import Any

import torch
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
    statistics are averaged over all ranks, which use as many batches as each of them has.

    Args:
        model: The model.
        norms: The BatchNorms to measure.
        data: A loader, a list of batches, or one batch.
        batches: Number of batches to use; by default all of a list, and 2 of anything else.
        forward: ``forward(model, batch)``; by default ``model(x)`` or ``model(**batch)``.
        group: The processes that train together; by default all.

    Raises:
        ValueError: If `data` contains no batch, on any rank.
        RuntimeError: If another rank failed.
    """
    norms = list(norms)
    momenta = {norm: norm.momentum for norm in norms}
    device = next(model.parameters()).device

    def steps() -> Generator[None, None, None]:
        with Replay(data, batches) as replay:
            for batch in replay:
                yield
                (forward or default_forward)(model, move_to(batch, device))

    try:
        with quiet_evaluation(model):
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # a plain average over the batches
                norm.training = True
            used = _advance_together(steps(), device, group)
    finally:
        for norm, momentum in momenta.items():
            norm.momentum = momentum
    if not used:
        where = " on at least one process" if is_distributed(group) else ""
        raise ValueError(f"Cannot measure BatchNorm statistics: the data contains no batch{where}.")
    if is_distributed(group):
        statistics = [s for norm in norms for s in (norm.running_mean, norm.running_var) if s is not None]
        all_reduce_([(statistic, "sum") for statistic in statistics], group)
        for statistic in statistics:
            statistic.div_(dist.get_world_size(group))


# What a process tells the others before each step; the lowest value of all decides.
_FAILED, _DONE, _READY = 0, 1, 2


def _advance_together(steps: Generator[None, None, None], device: torch.device, group: dist.ProcessGroup | None) -> int:
    """Advance an iterator on all processes until one of them is at its end; return the number of steps.

    An error on one process ends all of them, so that none waits for another. Synchronized BatchNorms do wait in the
    forward pass, which is why no process may take a step that the others do not take.
    """
    taken = 0
    with closing(steps):
        while True:
            error: Exception | None = None
            status = torch.tensor(_READY, device=device)
            try:
                next(steps)
            except StopIteration:
                status.fill_(_DONE)
            except Exception as caught:
                status.fill_(_FAILED)
                error = caught
            all_reduce_([(status, "min")], group)
            if error is not None:
                raise error
            if status == _FAILED:
                raise RuntimeError("Another process failed while measuring BatchNorm statistics; see its error.")
            if status == _DONE:
                return taken
            taken += 1
