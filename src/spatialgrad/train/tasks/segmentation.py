"""Semantic segmentation: cross entropy with an auxiliary head, and mean intersection over union.

The metrics come from one confusion matrix over all pixels of all test images, which adds up over batches and processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spatialgrad.data.batches import eval_batches
from spatialgrad.data.registry import load_for
from spatialgrad.data.segmentation import IGNORE, SegmentationDataset
from spatialgrad.data.warp import STILL, Geometry, Size
from spatialgrad.train.config import DataConfig, TrainConfig
from spatialgrad.train.errors import ConfigError
from spatialgrad.train.examples import Gallery, Pictures
from spatialgrad.train.tasks.base import Sums, Task, subset_of, total
from spatialgrad.utils.distributed import all_reduce_

LARGEST_SHOWN = 512
"""Maximum side of example pictures in pixels: full-size street scenes would make reports too large to open."""


class Segmentation(Task):
    """One class per pixel."""

    headline = "miou"

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.dataset: SegmentationDataset = load_masks(config.data)
        options = config.segmentation
        usual = Geometry(scale=options.scale, rotation=options.rotation, flip=True)
        self.augmentation = usual if config.data.augment else STILL

    @property
    def input_size(self) -> tuple[int, ...]:
        """Shape of one whole test image."""
        return (len(self.dataset.mean), *self.dataset.image_size)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.dataset.num_classes

    @property
    def class_names(self) -> Sequence[str]:
        """Names of the classes."""
        return tuple(self.dataset.classes)

    def cut_into_batches(self, world_size: int) -> tuple[tuple[int, int], ...]:
        """The bounds of each batch; at least two images per process."""
        number, batch_size = len(self.dataset.train), self.config.data.batch_size
        if min(number, batch_size) < 2 * world_size:
            # The mean over a whole image is a single value, which batch normalization cannot normalize.
            raise ConfigError(
                f"{self.config.model.name} needs at least 2 images per process in a batch: --batch-size is "
                f"{batch_size} for {world_size} processes, with {number} training images"
            )
        return super().cut_into_batches(world_size)

    def eval_batch_size(self, world_size: int) -> int:
        """At most as many pixels per process as in training."""
        (height, width), (rows, columns) = self.dataset.image_size, self.dataset.crop_size
        per_process = self.config.data.batch_size // world_size
        return max(1, per_process * rows * columns // (height * width)) * world_size

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Sums]:
        """Mean cross entropy over the labelled pixels, plus the weighted one of the auxiliary head."""
        images, masks = batch
        logits, auxiliary = model(images)
        own, weighted = cross_entropy(logits, masks), cross_entropy(auxiliary, masks)
        loss = own + self.config.segmentation.auxiliary * weighted
        return loss, self._sums(own, logits, masks) | {"auxiliary_loss": total(weighted) * _labelled(masks)}

    def evaluate(self, model: nn.Module, batch: Any) -> Sums:
        """Cross entropy and the confusion matrix."""
        images, masks = batch
        logits = model(images)
        return self._sums(cross_entropy(logits, masks), logits, masks)

    def metrics(self, sums: Sums) -> dict[str, float]:
        """Mean loss, mean intersection over union, mean class accuracy and pixel accuracy."""
        pixels = max(1, int(sums["confusion"].sum()))
        losses = {name: float(value) / pixels for name, value in sums.items() if name.endswith("loss")}
        return losses | scores(sums["confusion"])

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Run the network with both heads, so that the auxiliary one is measured, too."""
        return model(batch[0], auxiliary=True)

    def share(self, batch: Any, number: int, world_size: int) -> float | Tensor:
        """The share of the labelled pixels, so that every pixel has the same weight."""
        own = _labelled(batch[1])
        every = own.clone()
        all_reduce_([(every, "sum")])
        return own / every.clamp(min=1)

    def examples(self, model: nn.Module, number: int) -> Gallery:
        """Evenly spaced test images with the true and the predicted classes in colour."""
        dataset, examples = self.dataset, []
        chosen = torch.linspace(0, len(dataset.test) - 1, min(number, len(dataset.test))).round().long()
        batches = eval_batches(replace(dataset, test=dataset.test.select(chosen)), 1, device=self.device)
        for index, (images, masks) in zip(chosen.tolist(), batches, strict=True):
            predicted, truth = model(images)[0].argmax(0).cpu(), masks[0].cpu()
            found = scores(confusion_matrix(predicted[None], truth[None], dataset.num_classes))
            step = -(-max(truth.shape) // LARGEST_SHOWN)
            pictures = {
                "image": _smaller(dataset.test.read(index)[0], step),
                "truth": coloured(truth[::step, ::step], dataset),
                "prediction": coloured(predicted[::step, ::step], dataset),
            }
            name = dataset.test.name(index).replace("\\", "/").rsplit("/", 1)[-1]
            caption = f"{name}: {100 * found['allacc']:.1f} % of the pixels correct"
            examples.append(Pictures(caption=caption, images=pictures))
        return Gallery(examples=examples, legend=dataset.classes)

    def _sums(self, loss: Tensor, logits: Tensor, masks: Tensor) -> Sums:
        predicted = logits.detach().argmax(1)
        return {
            "loss": total(loss) * _labelled(masks),
            "confusion": confusion_matrix(predicted, masks, self.dataset.num_classes),
        }


def load_masks(config: DataConfig) -> SegmentationDataset:
    """The data set that a config describes."""
    dataset: SegmentationDataset = load_for("segmentation", config.name, config.root)
    if config.image_size is not None:
        size: Size = config.image_size if isinstance(config.image_size, tuple) else (config.image_size,) * 2
        dataset = dataset.with_crop_size(size)
    return subset_of(dataset, config)


def cross_entropy(logits: Tensor, masks: Tensor) -> Tensor:
    """The mean over all labelled pixels; 0 if there are none.

    Args:
        logits: Shape (images, classes, height, width).
        masks: Shape (images, height, width), int64; `IGNORE` marks unlabelled pixels.
    """
    return F.cross_entropy(logits, masks, ignore_index=IGNORE, reduction="sum") / _labelled(masks).clamp(min=1)


def confusion_matrix(predicted: Tensor, masks: Tensor, num_classes: int) -> Tensor:
    """Counts of labelled pixels by true class (rows) and predicted class (columns), int64."""
    # Unlabelled pixels are counted in one more row, which is left out: both to select pixels and torch.bincount, which
    # looks for the largest value, would make a GPU wait.
    rows = torch.where(masks != IGNORE, masks, num_classes)
    index = (rows * num_classes + predicted).flatten()
    counts = torch.zeros((num_classes + 1) * num_classes, dtype=torch.int64, device=index.device)
    counts.scatter_add_(0, index, torch.ones_like(index))
    return counts[: num_classes**2].view(num_classes, num_classes)


def scores(confusion: Tensor) -> dict[str, float]:
    """The metrics of a confusion matrix.

    Args:
        confusion: From `confusion_matrix`, or a sum of several.

    Returns:
        `miou`: mean intersection over union of the classes that occur or are predicted. `macc`: mean accuracy of the
        classes that occur. `allacc`: accuracy of all labelled pixels. Each is 0 if there are no such classes or pixels.
    """
    table = confusion.cpu().double()  # not every device supports 64 bits
    right, true, predicted = table.diag(), table.sum(1), table.sum(0)
    union = true + predicted - right
    return {
        "miou": _mean(right[union > 0] / union[union > 0]),
        "macc": _mean(right[true > 0] / true[true > 0]),
        "allacc": float(right.sum() / table.sum().clamp(min=1)),
    }


def coloured(classes: Tensor, dataset: SegmentationDataset) -> Tensor:
    """Classes, (height, width), as a picture, (3, height, width) of uint8; unlabelled pixels are black."""
    palette = torch.zeros(256, 3, dtype=torch.uint8)
    palette[: dataset.num_classes] = torch.tensor(list(dataset.classes.values()), dtype=torch.uint8)
    return palette[classes].permute(2, 0, 1)


def _smaller(image: Tensor, step: int) -> Tensor:
    """Downsample an image, (3, height, width) of uint8, by `step`."""
    return F.avg_pool2d(image.float(), step, ceil_mode=True).round().to(torch.uint8)


def _labelled(masks: Tensor) -> Tensor:
    return (masks != IGNORE).sum()


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else 0.0
