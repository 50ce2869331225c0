"""Batches for training and evaluation.

An epoch's training batches are a function of (seed, epoch, rank): not of the number of worker processes,
not of the device, and not of what ran before, so that a resumed run can start in the middle of an epoch.
With a given global batch, the ranks together also see exactly the images that a single process would see
(except in a last batch that is too small for them; see `batch_bounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from spatialgrad.data.augment import Augmentation, augment, draw, normalize
from spatialgrad.data.classification import ImageDataset, ResizedCrop
from spatialgrad.data.rng import generator_for
from spatialgrad.data.sampling import batch_bounds, check_shares, epoch_order, rank_bounds

Batch = tuple[Tensor, Tensor]


class Batches:
    """Images and labels, batch by batch; the same ones each time it is iterated."""

    def __init__(self, count: int, produce: Callable[[], Iterator[Batch]]) -> None:
        self._count = count
        self._produce = produce

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        return self._produce()


def steps_per_epoch(
    dataset: ImageDataset[Any], batch_size: int, *, world_size: int = 1, drop_last: bool = False
) -> int:
    """The number of batches that `train_batches` gives to each rank in one epoch."""
    return len(batch_bounds(len(dataset.train), batch_size, world_size=world_size, drop_last=drop_last))


def train_batches(
    dataset: ImageDataset[Any],
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    augmentation: Augmentation | None = None,
    rank: int = 0,
    world_size: int = 1,
    start: int = 0,
    drop_last: bool = False,
    device: torch.device | str = "cpu",
    num_workers: int = 0,
) -> Batches:
    """The training batches of one epoch, shuffled, augmented and normalized.

    Args:
        dataset: Its `train` split is used.
        batch_size: Images per step, over all ranks; each rank gets its share.
        seed: Of the run.
        epoch: Another epoch has another order and other augmentations.
        augmentation: What is done to the images; `dataset.augmentation` is the usual. None does nothing.
        rank: Of this process.
        world_size: Number of processes.
        start: The first batch to give: a run that was stopped after n batches goes on with `start=n`.
        drop_last: Leave out an incomplete last batch. Otherwise it is smaller; see `batch_bounds`.
        device: Where batches go, and where augmentation is done.
        num_workers: Processes that decode images in files. It changes the speed only.

    Returns:
        An iterable, with a length, of float32 images and int64 labels.
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
    config = augmentation or Augmentation()
    crop = None
    if config.resized_crop is not None:
        crop = ResizedCrop(seed=seed, epoch=epoch, area=config.resized_crop)
    target = torch.device(device)

    def produce() -> Iterator[Batch]:
        order = epoch_order(count, seed=seed, epoch=epoch)
        shares = [rank_bounds(*bound, rank=rank, world_size=world_size) for bound in bounds[start:]]
        loaded = dataset.train.load(
            [order[first:last] for first, last in shares],
            image_size=dataset.image_size,
            resized_crop=crop,
            device=target,
            num_workers=num_workers,
        )
        for number, (images, labels) in enumerate(loaded, start):
            (begin, end), (first, last) = bounds[number], shares[number - start]
            draws = draw(end - begin, generator_for("augment", seed, epoch, number))
            part = draws.part(first - begin, last - begin)
            yield augment(images, config, part, mean=dataset.mean, std=dataset.std), labels

    return Batches(len(bounds) - start, produce)


def eval_batches(
    dataset: ImageDataset[Any],
    batch_size: int,
    *,
    split: Literal["train", "test"] = "test",
    rank: int = 0,
    world_size: int = 1,
    device: torch.device | str = "cpu",
    num_workers: int = 0,
) -> Batches:
    """The images of a split, each once over all ranks, in their order, normalized and not augmented.

    Args:
        dataset: The data set.
        batch_size: Images per step, over all ranks.
        split: `test`, or `train` to evaluate on the training images.
        rank: Of this process.
        world_size: Number of processes. At the end, ranks may differ by one batch or one image: sum
            counts over ranks, do not average averages.
        device: Where batches go.
        num_workers: Processes that decode images in files. It changes the speed only.
    """
    check_shares(batch_size, rank=rank, world_size=world_size)
    images_of = dataset.train if split == "train" else dataset.test
    shares = [
        rank_bounds(*bound, rank=rank, world_size=world_size) for bound in batch_bounds(len(images_of), batch_size)
    ]
    shares = [(first, last) for first, last in shares if last > first]
    target = torch.device(device)

    def produce() -> Iterator[Batch]:
        loaded = images_of.load(
            [torch.arange(first, last) for first, last in shares],
            image_size=dataset.image_size,
            resized_crop=None,
            device=target,
            num_workers=num_workers,
        )
        for images, labels in loaded:
            yield normalize(images, dataset.mean, dataset.std), labels

    return Batches(len(shares), produce)
