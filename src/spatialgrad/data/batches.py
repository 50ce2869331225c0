"""Batches for training and evaluation, of any data set.

The training batches of an epoch are a function of (seed, epoch, rank). They do not depend on the number of worker
processes, the device or what ran before, so that a resumed run can start in the middle of an epoch. For a given global
batch size, all ranks together see exactly the images that a single process would see (except in a last batch that is
too small for them; see `batch_bounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from spatialgrad.data.errors import DataError
from spatialgrad.data.rng import generator_for

Batch = tuple[Tensor, ...]
"""Images (float32, normalized), then their targets."""
Make = Callable[[int], tuple[Tensor, ...]]
"""Makes an image and its targets from its index. It is sent to worker processes, so it must be picklable."""
SplitName = Literal["train", "test"]
A = TypeVar("A")
"""The augmentation of a kind of data sets."""


@dataclass(frozen=True, eq=False)
class Share:
    """One rank's part of a batch.

    Attributes:
        batch: Number of the batch in its epoch.
        batch_size: Images in the whole batch, over all ranks.
        first: Position of the part's first image in the whole batch.
        indices: Indices of the part's images in their split.
    """

    batch: int
    batch_size: int
    first: int
    indices: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Request(Generic[A]):
    """What `train_batches` and `eval_batches` ask of a data set."""

    split: SplitName
    shares: Sequence[Share]
    """One for each batch."""
    training: bool
    """False for evaluation: augmentation, seed and epoch are not used."""
    augmentation: A | None = None
    seed: int = 0
    epoch: int = 0
    device: torch.device
    num_workers: int


class BatchDataset(Protocol[A]):
    """What `train_batches` and `eval_batches` need from a data set."""

    @property
    def name(self) -> str:
        """The name it is loaded by."""

    @property
    def train(self) -> Sized:
        """The training images."""

    @property
    def test(self) -> Sized:
        """The test images."""

    def load(self, request: Request[A]) -> Iterator[Batch]:
        """Load the batches of a request."""


class Batches:
    """An iterable of batches that has a length and gives the same batches each time it is iterated."""

    def __init__(self, count: int, produce: Callable[[], Iterator[Batch]]) -> None:
        self._count = count
        self._produce = produce

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        return self._produce()


def steps_per_epoch(
    dataset: BatchDataset[Any], batch_size: int, *, world_size: int = 1, drop_last: bool = False
) -> int:
    """The number of batches that `train_batches` gives to each rank in an epoch."""
    return len(batch_bounds(len(dataset.train), batch_size, world_size=world_size, drop_last=drop_last))


def train_batches(
    dataset: BatchDataset[A],
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    augmentation: A | None = None,
    rank: int = 0,
    world_size: int = 1,
    start: int = 0,
    drop_last: bool = False,
    device: torch.device | str = "cpu",
    num_workers: int = 0,
) -> Batches:
    """The training batches of one epoch, shuffled, augmented and normalized.

    Args:
        dataset: The data set, whose `train` split is used.
        batch_size: Images per step, over all ranks.
        seed: Seed of the run.
        epoch: Number of the epoch; each has its own order and augmentation.
        augmentation: An `Augmentation` for classification (usually `dataset.augmentation`), a `Geometry` for
            segmentation, a `PoseAugmentation` for pose; None for no augmentation.
        rank: Rank of this process.
        world_size: Number of processes.
        start: Number of the first batch: a run that stopped after n batches resumes with `start=n`.
        drop_last: Leave out an incomplete last batch; see `batch_bounds`.
        device: Device of the batches.
        num_workers: Number of processes that decode image files; affects speed only.

    Returns:
        An iterable, with a length, of tuples: images (float32) and labels (int64) for classification; images and masks
        (int64) for segmentation; images, joints, visibility and reference lengths for pose.
    """
    check_shares(batch_size, rank=rank, world_size=world_size)
    count = len(dataset.train)
    bounds = batch_bounds(count, batch_size, world_size=world_size, drop_last=drop_last)
    if count < world_size:
        raise ValueError(f"{dataset.name} has {count} training images, too few for {world_size} ranks")
    if not bounds:
        raise ValueError(f"{dataset.name} has {count} training images: drop_last leaves no batch of {batch_size}")
    if not 0 <= start <= len(bounds):
        raise ValueError(f"start must be a batch of the epoch, 0 to {len(bounds)}, got {start}")

    def produce() -> Iterator[Batch]:
        order = epoch_order(count, seed=seed, epoch=epoch)
        shares = _shares(order, bounds, rank=rank, world_size=world_size)[start:]
        request = Request(
            split="train",
            shares=shares,
            training=True,
            augmentation=augmentation,
            seed=seed,
            epoch=epoch,
            device=torch.device(device),
            num_workers=num_workers,
        )
        return dataset.load(request)

    return Batches(len(bounds) - start, produce)


def eval_batches(
    dataset: BatchDataset[Any],
    batch_size: int,
    *,
    split: SplitName = "test",
    rank: int = 0,
    world_size: int = 1,
    device: torch.device | str = "cpu",
    num_workers: int = 0,
) -> Batches:
    """The images of a split in order, each once over all ranks, normalized and not augmented.

    Args:
        dataset: The data set.
        batch_size: Images per step, over all ranks.
        split: `test`, or `train` to evaluate on the training images.
        rank: Rank of this process.
        world_size: Number of processes. Ranks may end with different numbers of batches and images: sum the counts over
            ranks instead of averaging averages.
        device: As for `train_batches`.
        num_workers: As for `train_batches`.
    """
    check_shares(batch_size, rank=rank, world_size=world_size)
    count = len(dataset.train if split == "train" else dataset.test)
    shares = _shares(torch.arange(count), batch_bounds(count, batch_size), rank=rank, world_size=world_size)
    request: Request[Any] = Request(
        split=split,
        shares=[share for share in shares if len(share.indices)],
        training=False,
        device=torch.device(device),
        num_workers=num_workers,
    )
    return Batches(len(request.shares), lambda: dataset.load(request))


def epoch_order(count: int, *, seed: int, epoch: int) -> Tensor:
    """A permutation of `count` images that depends on seed and epoch alone."""
    return torch.randperm(count, generator=generator_for("order", seed, epoch))


@lru_cache(maxsize=16)
def batch_bounds(
    count: int, batch_size: int, *, world_size: int = 1, drop_last: bool = False
) -> tuple[tuple[int, int], ...]:
    """Divide `count` images into global batches.

    The last batch is smaller if the count is not a multiple of the batch size. If it could not give every rank two
    images (batch normalization needs two, and the other ranks would wait for one without a batch), its images join the
    batch before it.

    Args:
        count: Images in an epoch.
        batch_size: Images per step, over all ranks.
        world_size: Number of ranks that share each batch.
        drop_last: Leave out an incomplete last batch.

    Returns:
        The first position of each batch and the one after its last.
    """
    bounds = [(start, min(start + batch_size, count)) for start in range(0, count, batch_size)]
    rest = count % batch_size
    if rest and drop_last:
        bounds.pop()
    elif 0 < rest < 2 * world_size and len(bounds) > 1:
        bounds[-2:] = [(bounds[-2][0], count)]
    return tuple(bounds)


def rank_bounds(start: int, stop: int, *, rank: int, world_size: int) -> tuple[int, int]:
    """The contiguous part of a global batch that belongs to a rank; sizes differ by at most one."""
    size = stop - start
    return start + size * rank // world_size, start + size * (rank + 1) // world_size


def check_shares(batch_size: int, *, rank: int, world_size: int) -> None:
    """Check that the rank exists and that the batch size is a multiple of the world size."""
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of 0 to {world_size - 1}, the ranks of world size {world_size}")
    if batch_size < 1 or batch_size % world_size:
        raise ValueError(
            f"batch size {batch_size} counts the images of all ranks together: "
            f"it must be a positive multiple of the world size {world_size}"
        )


def load_items(
    make: Make, batches: Iterable[Tensor], *, device: torch.device, num_workers: int
) -> Iterator[tuple[Tensor, ...]]:
    """Make the images and targets of each batch of indices, and stack them.

    Args:
        make: Makes an image and its targets.
        batches: Indices of the images of each batch.
        device: Device of the result.
        num_workers: Number of processes that call `make`; 0 for this one.

    Raises:
        DataError: If `make` raises one, even in a worker process.
    """
    loader = DataLoader(
        _Items(make),
        sampler=[indices.tolist() for indices in batches],
        batch_size=None,
        num_workers=num_workers,
        pin_memory=device.type == "cuda",
        # By default, a DataLoader would draw from the global generator and so change the run.
        generator=torch.Generator(),
    )
    for items in loader:
        if isinstance(items, DataError):
            raise items
        yield tuple(tensor.to(device, non_blocking=True) for tensor in items)


class _Items(Dataset[Any]):
    """Makes whole batches."""

    def __init__(self, make: Make) -> None:
        self.make = make

    def __getitem__(self, indices: list[int]) -> tuple[Tensor, ...] | DataError:
        try:
            return tuple(torch.stack(tensors) for tensors in zip(*map(self.make, indices), strict=True))
        except DataError as error:
            # Returned, not raised: a DataLoader would put the worker's whole traceback into the message.
            return error


def _shares(order: Tensor, bounds: Iterable[tuple[int, int]], *, rank: int, world_size: int) -> list[Share]:
    shares = []
    for number, (begin, end) in enumerate(bounds):
        first, last = rank_bounds(begin, end, rank=rank, world_size=world_size)
        shares.append(Share(number, end - begin, first - begin, order[first:last]))
    return shares
