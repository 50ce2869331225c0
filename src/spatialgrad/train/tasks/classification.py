"""Image classification: cross entropy and accuracy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spatialgrad.data import (
    Augmentation,
    ImageDataset,
    MemorySplit,
    eval_batches,
    load_dataset,
    stratified_indices,
    train_batches,
    validation_split,
)
from spatialgrad.models import create_model
from spatialgrad.train.errors import ConfigError
from spatialgrad.train.tasks.base import SizedIterable, Sums, Task, total
from spatialgrad.train.tasks.parts import limited

if TYPE_CHECKING:
    from spatialgrad.train.config.groups import DataConfig, TrainConfig

LARGEST_ON_DEVICE = 2 << 30
"""Bytes of images up to which a data set in memory is kept on the device, where batches are then put together."""
EVAL_FACTOR = 2
"""Test batches on a GPU are larger than training batches, as they need no memory for a backward pass. On a CPU they
would only leave its cache sooner."""


class Classification(Task):
    """One label per image."""

    headline = "accuracy"

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.dataset: ImageDataset[Any] = _on(device, load_images(config.data))
        self.augmentation = _augmentation(config.data, self.dataset)

    @property
    def input_size(self) -> tuple[int, ...]:
        """Shape of one image."""
        return (self.dataset.channels, self.dataset.image_size, self.dataset.image_size)

    def build_model(self) -> nn.Module:
        """A new network with an output for every class."""
        model = self.config.model
        return create_model(
            model.name, num_classes=self.dataset.num_classes, width=model.width, in_channels=self.dataset.channels
        )

    def train_batches(self, epoch: int, *, start: int = 0, rank: int = 0, world_size: int = 1) -> SizedIterable:
        """An epoch's augmented images and labels."""
        return train_batches(
            self.dataset,
            self.config.data.batch_size,
            seed=self.config.seed,
            epoch=epoch,
            augmentation=self.augmentation,
            rank=rank,
            world_size=world_size,
            start=start,
            drop_last=self.config.data.drop_last,
            device=self.device,
            num_workers=self.config.machine.workers,
        )

    def eval_batches(self, *, rank: int = 0, world_size: int = 1) -> SizedIterable:
        """The test images and labels."""
        factor = 1 if self.device.type == "cpu" else EVAL_FACTOR
        return eval_batches(
            self.dataset,
            self.config.data.batch_size * factor,
            rank=rank,
            world_size=world_size,
            device=self.device,
            num_workers=self.config.machine.workers,
        )

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Sums]:
        """Cross entropy."""
        images, labels = batch
        logits = model(images)
        loss = F.cross_entropy(logits, labels)
        return loss, _sums(loss, logits, labels)

    def evaluate(self, model: nn.Module, batch: Any) -> Sums:
        """Cross entropy and right answers."""
        images, labels = batch
        logits = model(images)
        return _sums(F.cross_entropy(logits, labels), logits, labels)

    def metrics(self, sums: Sums) -> dict[str, float]:
        """Mean loss and accuracy."""
        number = int(sums["images"])
        return {"loss": float(sums["loss"]) / number, "accuracy": int(sums["correct"]) / number}


def load_images(config: DataConfig) -> ImageDataset[Any]:
    """The data set that a config describes."""
    size = config.image_size
    if isinstance(size, tuple):
        raise ConfigError(f"invalid data.image_size: {size!r} must be one number for classification")
    dataset = load_dataset(config.name, config.root, image_size=size)
    if config.validation:
        dataset = validation_split(dataset, config.validation, seed=config.split_seed)

    def choose(images: Any, limit: int) -> Tensor:
        """The same share of every class."""
        return stratified_indices(images.labels, limit / len(images), seed=config.split_seed)[1]

    return limited(dataset, config, choose)


def _augmentation(config: DataConfig, dataset: ImageDataset[Any]) -> Augmentation | None:
    usual = dataset.augmentation if config.augment else Augmentation()
    return replace(usual, cutout=config.cutout)


def _on(device: torch.device, dataset: ImageDataset[Any]) -> ImageDataset[Any]:
    splits = {"train": dataset.train, "test": dataset.test}
    if device.type != "cuda" or not all(isinstance(split, MemorySplit) for split in splits.values()):
        return dataset
    if sum(split.images.nbytes for split in splits.values()) > LARGEST_ON_DEVICE:
        return dataset
    return replace(dataset, **{name: split.to(device) for name, split in splits.items()})


def _sums(loss: Tensor, logits: Tensor, labels: Tensor) -> Sums:
    return {
        "loss": total(loss) * len(labels),
        "correct": (logits.detach().argmax(1) == labels).sum(),
        "images": torch.tensor(len(labels), device=labels.device),
    }
