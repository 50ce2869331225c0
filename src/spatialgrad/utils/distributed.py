"""Distributed training: the few collectives that the package uses, for flags, ranges and counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

Reduction = Literal["sum", "min", "max"]
_PLAIN = (Tensor, torch.nn.Parameter)
_OPS = {"sum": "SUM", "min": "MIN", "max": "MAX"}


def is_distributed(group: dist.ProcessGroup | None = None) -> bool:
    """Return whether there is more than one process."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1


def all_reduce_(partials: Iterable[tuple[Tensor, Reduction]], group: dist.ProcessGroup | None = None) -> None:
    """Combine tensors over all processes in place, with one collective per kind of reduction, dtype and device."""
    if not is_distributed(group):
        return
    buckets: dict[tuple[Reduction, torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
    for tensor, reduction in partials:
        buckets[reduction, tensor.dtype, tensor.device].append(tensor)
    for (reduction, _, _), tensors in sorted(buckets.items(), key=lambda item: str(item[0])):
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat, op=getattr(dist.ReduceOp, _OPS[reduction]), group=group)
        for tensor, part in zip(tensors, torch.split(flat, [t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))


def collective_device(group: dist.ProcessGroup | None = None) -> torch.device:
    """Return a device whose tensors the processes of a group can exchange."""
    backend = dist.get_backend(group)
    if "nccl" in backend:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("xpu", torch.xpu.current_device()) if "ccl" in backend else torch.device("cpu")


def highest(value: int, group: dist.ProcessGroup | None = None) -> int:
    """Return the largest of all processes' values."""
    if not is_distributed(group):
        return value
    flag = torch.tensor(value, device=collective_device(group))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)
    return int(flag)


def raise_together(error: BaseException | None, group: dist.ProcessGroup | None = None) -> None:
    """Raise this process's error, if any; all other processes raise, too, as they would wait for this one."""
    failed = highest(int(error is not None), group)
    if error is not None:
        raise error
    if failed:
        raise RuntimeError("Another process failed in this step; see its error.")


def check_agreement(values: Mapping[str, Any], group: dist.ProcessGroup | None = None) -> None:
    """Raise `ValueError` on all processes unless all of them have the same values.

    Args:
        values: What must agree, by a name for the error; equal values must have equal representations.
        group: The processes that must agree; by default all of them.
    """
    if not is_distributed(group):
        return
    # Not hash(): it differs between processes.
    digests = [int.from_bytes(sha256(repr(value).encode()).digest()[:7]) for value in values.values()]
    extremes = torch.tensor([digests, [-digest for digest in digests]], device=collective_device(group))
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=group)
    different = [name for name, (high, low) in zip(values, extremes.T.tolist(), strict=True) if high != -low]
    if different:
        own = "; ".join(f"{name} {values[name]!r}" for name in different)
        raise ValueError(f"The processes disagree on {', '.join(different)}. Process {dist.get_rank()} has {own}.")


def local_part(tensor: Tensor) -> Tensor:
    """Return this process's shard of a distributed tensor, sharing its memory; any other tensor unchanged."""
    # First, as this runs for every weight in every step: asking a plain tensor for an attribute that it lacks is slow.
    if type(tensor) in _PLAIN:
        return tensor
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
