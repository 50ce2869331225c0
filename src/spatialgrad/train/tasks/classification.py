"""Image classification: cross entropy and accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spatialgrad.data import Augmentation, ImageDataset, load_dataset
from spatialgrad.train.config import DataConfig, TrainConfig
from spatialgrad.train.flags import require
from spatialgrad.train.tasks.base import Sums, Task, subset_of, total

LARGEST_ON_DEVICE = 2 << 30
"""Maximum number of bytes of a data set that is kept on the GPU, where its batches are then assembled."""
EVAL_FACTOR = 2
"""Test batches on a GPU are larger than training batches by this factor, as they need no memory for a backward pass. On
a CPU they would only fit its cache less well."""


class Classification(Task):
    """One label per image."""

    headline = "accuracy"

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.dataset: ImageDataset[Any] = _on(device, load_images(config.data))
        usual = self.dataset.augmentation if config.data.augment else Augmentation()
        self.augmentation = replace(usual, cutout=config.data.cutout)

    @property
    def input_size(self) -> tuple[int, ...]:
        """Shape of one image."""
        return (self.dataset.channels, self.dataset.image_size, self.dataset.image_size)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.dataset.num_classes

    @property
    def class_names(self) -> Sequence[str]:
        """Names of the classes."""
        return self.dataset.class_names

    def eval_batch_size(self, world_size: int) -> int:
        """Twice the training batch on a GPU."""
        return self.config.data.batch_size * (1 if self.device.type == "cpu" else EVAL_FACTOR)

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Sums]:
        """Cross entropy."""
        images, labels = batch
        logits = model(images)
        loss = F.cross_entropy(logits, labels, label_smoothing=self.config.label_smoothing)
        return loss, _sums(loss, logits, labels)

    def evaluate(self, model: nn.Module, batch: Any) -> Sums:
        """Cross entropy and correct predictions."""
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
    require(not isinstance(size, tuple), "data.image_size", size, "must be one number for classification")
    return subset_of(load_dataset(config.name, config.root, image_size=cast("int | None", size)), config)


def _on(device: torch.device, dataset: ImageDataset[Any]) -> ImageDataset[Any]:
    if device.type != "cuda" or not dataset.in_memory:
        return dataset
    num_bytes = dataset.train.images.nbytes + dataset.test.images.nbytes
    return dataset.to(device) if num_bytes <= LARGEST_ON_DEVICE else dataset


def _sums(loss: Tensor, logits: Tensor, labels: Tensor) -> Sums:
    return {
        "loss": total(loss) * len(labels),
        "correct": (logits.detach().argmax(1) == labels).sum(),
        # Made on the device: a copy from the CPU would wait for it.
        "images": torch.full((), len(labels), device=labels.device),
    }
