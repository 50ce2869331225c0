"""Batches of images with dense targets, made image by image in worker processes.

What is made of an image is a function of seed, epoch and its index, so that batches depend neither on the number of
workers and processes nor on what ran before; see `batches.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from spatialgrad.data.batches import Batches
from spatialgrad.data.errors import DataError
from spatialgrad.data.sampling import batch_bounds, check_shares, epoch_order, rank_bounds

Make = Callable[[int], tuple[Tensor, ...]]
"""Makes the tensors of the image with an index: the image first, then its targets. It goes to worker processes, so it
is an instance of a class at the top of a module, with its data as attributes."""


def paired_train_batches(
    make: Make,
    count: int,
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    rank: int = 0,
    world_size: int = 1,
    start: int = 0,
    device: torch.device | str = "cpu",
    num_workers: int = 0,
) -> Batches:
    """The training batches of one epoch, shuffled.

    Args:
        make: Makes one image with its targets; it knows seed and epoch by itself.
        count: Number of images.
        batch_size: Images per step, over all ranks.
        seed: Of the run.
        epoch: Another epoch has another order.
        rank: Of this process.
        world_size: Number of processes.
        start: The first batch to give.
        device: Where batches go.
        num_workers: Processes that make images. It changes the speed only.
    """
    check_shares(batch_size, rank=rank, world_size=world_size)
    bounds = batch_bounds(count, batch_size, world_size=world_size)
    if count < world_size:
        raise ValueError(f"{count} training images are too few for {world_size} ranks")
    if not 0 <= start <= len(bounds):
        raise ValueError(f"start must be a batch of the epoch, 0 to {len(bounds)}, got {start}")

    def produce() -> Iterator[Any]:
        order = epoch_order(count, seed=seed, epoch=epoch)
        shares = [rank_bounds(*bound, rank=rank, world_size=world_size) for bound in bounds[start:]]
        return _made(make, [order[first:last].tolist() for first, last in shares], torch.device(device), num_workers)

    return Batches(len(bounds) - start, produce)


def paired_eval_batches(
    make: Make,
    count: int,
    batch_size: int,
    *,
    rank: int = 0,
    world_size: int = 1,
    device: torch.device | str = "cpu",
    num_workers: int = 0,
) -> Batches:
    """Every image once over all ranks, in order; for the arguments see `paired_train_batches`."""
    check_shares(batch_size, rank=rank, world_size=world_size)
    shares = [rank_bounds(*bound, rank=rank, world_size=world_size) for bound in batch_bounds(count, batch_size)]
    lists = [list(range(first, last)) for first, last in shares if last > first]
    return Batches(len(lists), lambda: _made(make, lists, torch.device(device), num_workers))


def _made(make: Make, batches: Sequence[list[int]], device: torch.device, num_workers: int) -> Iterator[Any]:
    loader = DataLoader(
        _Maker(make),
        batch_sampler=batches,
        collate_fn=_unchanged,
        num_workers=num_workers,
        pin_memory=device.type == "cuda",
        # Without one of its own, a DataLoader draws from the global generator and so changes the run.
        generator=torch.Generator(),
    )
    for made in loader:
        if isinstance(made, DataError):
            raise made
        yield tuple(tensor.to(device, non_blocking=True) for tensor in made)


class _Maker(Dataset[Any]):
    """Makes whole batches, in worker processes."""

    def __init__(self, make: Make) -> None:
        self.make = make

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, ...] | DataError:
        try:
            return tuple(torch.stack(tensors) for tensors in zip(*map(self.make, indices), strict=True))
        except DataError as error:
            # As a value: a DataLoader would put the worker's whole traceback into its message.
            return error


def _unchanged(batch: Any) -> Any:
    return batch
