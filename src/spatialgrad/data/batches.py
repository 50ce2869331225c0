"""Batches for training and evaluation, of any data set.

The training batches of an epoch are a function of (seed, epoch, rank). They do not depend on the number of worker
processes, the device or what ran before, so that a resumed run can start in the middle of an epoch. For a given global
batch size, all ranks together see exactly the images that a single process would see (except in a last batch that is
too small for them; see `batch_bounds`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from spatialgrad.data.augment import normalize, to_device
from spatialgrad.data.errors import DataError
from spatialgrad.data.rng import generator_for

Batch = tuple[Tensor, ...]
"""Images (float32, normalized), then their targets."""
SplitName = Literal["train", "test"]
Workers = int | Literal["auto"]
MAX_AUTO_WORKERS = 8
A = TypeVar("A")
"""The augmentation of a kind of data sets."""


@dataclass(frozen=True, eq=False)
class Share:
    """One rank's part of a batch."""

    batch: int
    """Number of the batch in its epoch."""
    batch_size: int
    """Images in the whole batch, over all ranks."""
    first: int
    """Position of the part's first image in the whole batch."""
    indices: Tensor
    """Indices of the part's images in their split."""


@dataclass(frozen=True, kw_only=True)
class Pass(Generic[A]):
    """One pass over a split: what decides how its images are read, besides their indices."""

    split: SplitName
    training: bool
    """False for evaluation: augmentation, seed and epoch are not used."""
    augmentation: A | None = None
    seed: int = 0
    epoch: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchDataset(ABC, Generic[A]):
    """A data set of any task, for `train_batches` and `eval_batches`."""

    name: str
    """The name it is loaded by, such as `cifar10`."""
    description: str
    """Its name in reports; a subset is described as such."""
    train: Any
    """The training images, and what is to be learned from them."""
    test: Any
    mean: tuple[float, ...]
    """Mean of each channel for pixels in [0, 1]."""
    std: tuple[float, ...]
    """Standard deviation of each channel for pixels in [0, 1]."""
    warps: ClassVar[bool] = True
    """Whether `read` does more than to look up images, so that worker processes may help with images in memory."""

    def __post_init__(self) -> None:
        for split_name, split in (("train", self.train), ("test", self.test)):
            if not len(split):
                raise ValueError(f"{self.name}: the {split_name} split has no images")

    @property
    def in_memory(self) -> bool:
        """Whether its images are in memory, not in files."""
        return isinstance(getattr(self.train, "images", None), Tensor)

    @abstractmethod
    def read(self, run: Pass[A], indices: Tensor) -> Batch:
        """Images (uint8) and targets, stacked; called in a worker process, if there are any."""

    def finish(self, run: Pass[A], share: Share, images: Tensor, *targets: Tensor) -> Batch:
        """Augment and normalize what was read, on the device of the batch."""
        return normalize(images, self.mean, self.std), *targets


class Batches:
    """An iterable of batches that has a length and gives the same batches each time it is iterated."""

    def __init__(self, count: int, produce: Callable[[], Iterator[Batch]]) -> None:
        self._count, self._produce = count, produce

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        return self._produce()


class Loader(Generic[A]):
    """Makes the batches of a run, with worker processes that start once and serve all epochs and evaluations.

    Args:
        dataset: The data set.
        rank: Rank of this process.
        world_size: Number of processes.
        device: Device of the batches.
        workers: Number of processes that read images; affects speed only. `auto` is none for images in memory, else one
            per core of this process, at most 8.
    """

    def __init__(
        self,
        dataset: BatchDataset[A],
        *,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
        workers: Workers = 0,
    ) -> None:
        if world_size < 1 or not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not one of 0 to {world_size - 1}, the ranks of world size {world_size}")
        self.dataset = dataset
        self.rank, self.world_size = rank, world_size
        self.device = torch.device(device)
        self.workers = count_workers(dataset, workers, world_size)
        self._keys: list[Key] = []
        self._loader: DataLoader[Any] | None = None
        self._loader_in_use = False

    def train_batches(
        self,
        batch_size: int,
        *,
        seed: int,
        epoch: int,
        augmentation: A | None = None,
        start: int = 0,
        drop_last: bool = False,
    ) -> Batches:
        """The training batches of one epoch; see the function `train_batches`."""
        bounds = training_bounds(self.dataset, batch_size, world_size=self.world_size, drop_last=drop_last)
        if not 0 <= start <= len(bounds):
            raise ValueError(f"start must be a batch of the epoch, 0 to {len(bounds)}, got {start}")
        run = Pass(split="train", training=True, augmentation=augmentation, seed=seed, epoch=epoch)

        def produce() -> Iterator[Batch]:
            order = epoch_order(len(self.dataset.train), seed=seed, epoch=epoch)
            return self._load(run, self._shares(order, bounds)[start:])

        return Batches(len(bounds) - start, produce)

    def eval_batches(self, batch_size: int, *, split: SplitName = "test") -> Batches:
        """The images of a split in order; see the function `eval_batches`."""
        count = len(self.dataset.train if split == "train" else self.dataset.test)
        shares = self._shares(torch.arange(count), batch_bounds(count, batch_size))
        shares = [share for share in shares if len(share.indices)]
        run: Pass[A] = Pass(split=split, training=False)
        return Batches(len(shares), lambda: self._load(run, shares))

    def _shares(self, order: Tensor, bounds: Iterable[tuple[int, int]]) -> list[Share]:
        shares = []
        for number, (begin, end) in enumerate(bounds):
            first, last = rank_bounds(begin, end, rank=self.rank, world_size=self.world_size)
            shares.append(Share(number, end - begin, first - begin, order[first:last]))
        return shares

    def _load(self, run: Pass[A], shares: Sequence[Share]) -> Iterator[Batch]:
        for share, items in zip(shares, self._read(run, shares), strict=True):
            yield self.dataset.finish(run, share, *(to_device(tensor, self.device) for tensor in items))

    def _read(self, run: Pass[A], shares: Sequence[Share]) -> Iterator[Batch]:
        if not self.workers:
            yield from (self.dataset.read(run, share.indices) for share in shares)
            return
        with self._started_loader([(run, share.indices.tolist()) for share in shares]) as loader:
            for items in loader:
                if isinstance(items, DataError):
                    raise items
                yield items

    @contextmanager
    def _started_loader(self, keys: list[Key]) -> Iterator[DataLoader[Any]]:
        """The loader whose workers live as long as this object; another one if a pass over it has not ended yet."""
        if self._loader_in_use:
            yield self._new_loader(keys, persistent=False)
            return
        if self._loader is None:
            self._loader = self._new_loader(self._keys, persistent=True)
        self._keys[:], self._loader_in_use = keys, True
        try:
            yield self._loader
        finally:
            self._loader_in_use = False

    def _new_loader(self, keys: list[Key], *, persistent: bool) -> DataLoader[Any]:
        return DataLoader(
            _Items(self.dataset),
            sampler=keys,  # read anew in each pass
            batch_size=None,
            num_workers=self.workers,
            persistent_workers=persistent,
            pin_memory=self.device.type == "cuda",
            # By default, a DataLoader would draw from the global generator and so change the run.
            generator=torch.Generator(),
        )


Key = tuple[Pass[Any], list[int]]
"""What is sent to a worker process to get a batch: the epoch is a part of it, so that workers need not start again."""


class _Items(Dataset[Any]):
    """Reads whole batches."""

    def __init__(self, dataset: BatchDataset[Any]) -> None:
        self.dataset = dataset

    def __getitem__(self, key: Key) -> Batch | DataError:
        run, indices = key
        try:
            return self.dataset.read(run, torch.tensor(indices))
        except DataError as error:
            # Returned, not raised: a DataLoader would put the worker's whole traceback into the message.
            return error


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
    workers: Workers = 0,
) -> Batches:
    """The training batches of one epoch, shuffled, augmented and normalized.

    With workers, a `Loader` is faster for more than one epoch: here, they start with every iteration.

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
        workers: Number of processes that read images, or `auto`; see `Loader`.

    Returns:
        An iterable, with a length, of tuples: images (float32) and labels (int64) for classification; images and masks
        (int64) for segmentation; images, joints, visibility and reference lengths for pose.
    """
    loader = Loader(dataset, rank=rank, world_size=world_size, device=device, workers=workers)
    return loader.train_batches(
        batch_size, seed=seed, epoch=epoch, augmentation=augmentation, start=start, drop_last=drop_last
    )


def eval_batches(
    dataset: BatchDataset[Any],
    batch_size: int,
    *,
    split: SplitName = "test",
    rank: int = 0,
    world_size: int = 1,
    device: torch.device | str = "cpu",
    workers: Workers = 0,
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
        workers: As for `train_batches`.
    """
    loader = Loader(dataset, rank=rank, world_size=world_size, device=device, workers=workers)
    return loader.eval_batches(batch_size, split=split)


def steps_per_epoch(
    dataset: BatchDataset[Any], batch_size: int, *, world_size: int = 1, drop_last: bool = False
) -> int:
    """The number of batches that `train_batches` gives to each rank in an epoch."""
    return len(training_bounds(dataset, batch_size, world_size=world_size, drop_last=drop_last))


def count_workers(dataset: BatchDataset[Any], workers: Workers, world_size: int = 1) -> int:
    """The number of worker processes of one rank; see `Loader`."""
    if dataset.in_memory and (workers == "auto" or not dataset.warps):
        return 0
    if workers != "auto":
        return workers
    # torchrun tells how many of the processes share this machine.
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MAX_AUTO_WORKERS, max(1, cores // ranks_here))


def training_bounds(
    dataset: BatchDataset[Any], batch_size: int, *, world_size: int = 1, drop_last: bool = False
) -> tuple[tuple[int, int], ...]:
    """The bounds of the batches of an epoch; see `batch_bounds`.

    Raises:
        ValueError: If there is no batch, or the processes cannot share it; the message names the flag.
    """
    count = len(dataset.train)
    if batch_size < 1 or batch_size % world_size:
        raise ValueError(f"--batch-size {batch_size} must be a multiple of the number of processes, {world_size}")
    if count < world_size:
        raise ValueError(f"{dataset.description} has {count} training images, too few for {world_size} processes")
    bounds = batch_bounds(count, batch_size, world_size=world_size, drop_last=drop_last)
    if not bounds:
        raise ValueError(
            f"--data.drop-last drops the only batch: {dataset.description} has {count} training images, fewer than "
            f"--batch-size {batch_size}. Use --data.no-drop-last or a smaller batch"
        )
    return bounds


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
