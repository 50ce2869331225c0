"""Which images make up each batch of an epoch, for every rank: index arithmetic and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor

from spatialgrad.data.rng import generator_for


def epoch_order(count: int, *, seed: int, epoch: int) -> Tensor:
    """A permutation of `count` images that depends on seed and epoch alone."""
    return torch.randperm(count, generator=generator_for("order", seed, epoch))


def batch_bounds(count: int, batch_size: int, *, world_size: int = 1, drop_last: bool = False) -> list[tuple[int, int]]:
    """Cut `count` images into global batches.

    The last batch is smaller when the count does not divide. If it could not give every rank two images
    (batch normalization needs two, and a rank without a batch would hang the others), its images join the
    batch before it.

    Args:
        count: Images in an epoch.
        batch_size: Images per step, over all ranks.
        world_size: Ranks that share each batch.
        drop_last: Leave an incomplete last batch out.

    Returns:
        The first and one past the last position of each batch.
    """
    bounds = [(start, min(start + batch_size, count)) for start in range(0, count, batch_size)]
    rest = count % batch_size
    if rest and drop_last:
        bounds.pop()
    elif 0 < rest < 2 * world_size and len(bounds) > 1:
        bounds[-2:] = [(bounds[-2][0], count)]
    return bounds


def rank_bounds(start: int, stop: int, *, rank: int, world_size: int) -> tuple[int, int]:
    """The contiguous part of a global batch that one rank works on; sizes differ by one at most."""
    size = stop - start
    return start + size * rank // world_size, start + size * (rank + 1) // world_size


def check_shares(batch_size: int, *, rank: int, world_size: int) -> None:
    """Refuse a batch size, rank and world size that do not belong together."""
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of 0 to {world_size - 1}, the ranks of world size {world_size}")
    if batch_size < 1 or batch_size % world_size:
        raise ValueError(
            f"batch size {batch_size} counts the images of all ranks together: "
            f"it must be a positive multiple of the world size {world_size}"
        )
