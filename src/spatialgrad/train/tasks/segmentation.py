"""Semantic segmentation: cross entropy with an auxiliary head, and the mean intersection over union.

The metrics come from one confusion matrix over all pixels of all test images, which adds up over batches and processes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spatialgrad.data.batches import eval_batches, train_batches
from spatialgrad.data.registry import load_for
from spatialgrad.data.segmentation import IGNORE, SegmentationDataset
from spatialgrad.data.warp import STILL, Geometry, Size
from spatialgrad.models import create_model
from spatialgrad.torch_utils.distributed import all_reduce_
from spatialgrad.train.errors import ConfigError
from spatialgrad.train.runs.predictions import Example, Examples
from spatialgrad.train.tasks.base import SizedIterable, Sums, Task, total
from spatialgrad.train.tasks.parts import part_of

if TYPE_CHECKING:
    from spatialgrad.train.config.groups import DataConfig, TrainConfig


LARGEST_SHOWN = 512
"""Longest side of example pictures, in pixels: street scenes as they are would make reports too large to open."""


class Segmentation(Task):
    """One class per pixel."""

    headline = "miou"

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.dataset: SegmentationDataset = load_masks(config.data)
        options = config.segmentation
        usual = Geometry(scale=options.scale, rotation=options.rotation, flip=True)
        self.geometry = usual if config.data.augment else STILL

    @property
    def input_size(self) -> tuple[int, ...]:
        """Shape of one test image, which the network gets whole."""
        return (len(self.dataset.mean), *self.dataset.image_size)

    def build_model(self) -> nn.Module:
        """A new network with an output for every class."""
        model, channels = self.config.model, len(self.dataset.mean)
        return create_model(model.name, num_classes=self.dataset.num_classes, width=model.width, in_channels=channels)

    def cut_into_batches(self, world_size: int) -> tuple[tuple[int, int], ...]:
        """The first and one past the last image of each batch; two images per process at least."""
        number, batch_size = len(self.dataset.train), self.config.data.batch_size
        if min(number, batch_size) < 2 * world_size:
            # The mean over a whole image is a single value, which batch normalization cannot normalize.
            raise ConfigError(
                f"{self.config.model.name} needs at least 2 images per process in a batch: data.batch_size is "
                f"{batch_size} for {world_size} processes, of {number} training images"
            )
        return super().cut_into_batches(world_size)

    def train_batches(self, epoch: int, *, start: int = 0, rank: int = 0, world_size: int = 1) -> SizedIterable:
        """An epoch's moved crops and their masks."""
        return train_batches(
            self.dataset,
            self.config.data.batch_size,
            seed=self.config.seed,
            epoch=epoch,
            augmentation=self.geometry,
            rank=rank,
            world_size=world_size,
            start=start,
            device=self.device,
            num_workers=self.config.machine.workers,
        )

    def eval_batches(self, *, rank: int = 0, world_size: int = 1) -> SizedIterable:
        """The whole test images and their masks; a batch has no more pixels than one of training."""
        (height, width), (rows, columns) = self.dataset.image_size, self.dataset.crop_size
        per_process = self.config.data.batch_size // world_size
        number = max(1, per_process * rows * columns // (height * width))
        return eval_batches(
            self.dataset,
            number * world_size,
            rank=rank,
            world_size=world_size,
            device=self.device,
            num_workers=self.config.machine.workers,
        )

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Sums]:
        """Cross entropy of the pixels that have a class, and that of the auxiliary head with its weight."""
        images, masks = batch
        logits, auxiliary = model(images)
        own, weighted = cross_entropy(logits, masks), cross_entropy(auxiliary, masks)
        loss = own + self.config.segmentation.auxiliary * weighted
        return loss, self._sums(own, logits, masks) | {"auxiliary_loss": total(weighted) * _labelled(masks)}

    def evaluate(self, model: nn.Module, batch: Any) -> Sums:
        """Cross entropy and the confusion of the classes."""
        images, masks = batch
        logits = model(images)
        return self._sums(cross_entropy(logits, masks), logits, masks)

    def metrics(self, sums: Sums) -> dict[str, float]:
        """Mean loss, mean intersection over union, mean accuracy of the classes and accuracy of all pixels."""
        pixels = max(1, int(sums["confusion"].sum()))
        losses = {name: float(value) / pixels for name, value in sums.items() if name.endswith("loss")}
        return losses | scores(sums["confusion"])

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Run the network with both of its heads, so that the auxiliary one is measured as well."""
        return model(batch[0], auxiliary=True)

    def share(self, batch: Any, number: int, world_size: int) -> float | Tensor:
        """The share of the pixels that have a class, as one process would weigh them."""
        own = _labelled(batch[1])
        every = own.clone()
        all_reduce_([(every, "sum")])
        return own / every.clamp(min=1)

    def examples(self, model: nn.Module, number: int) -> Examples:
        """Test images from the first to the last, with the true and the predicted classes in colours."""
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
            caption = f"{name}: {100 * found['allacc']:.1f} % of the pixels right"
            examples.append(Example(caption=caption, images=pictures))
        return Examples(examples=examples, legend=dataset.classes)

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
    return part_of(dataset, config)


def cross_entropy(logits: Tensor, masks: Tensor) -> Tensor:
    """The mean over all pixels that have a class; 0 where none has one.

    Args:
        logits: Shape (images, classes, height, width).
        masks: Shape (images, height, width), int64; `IGNORE` is no class.
    """
    return F.cross_entropy(logits, masks, ignore_index=IGNORE, reduction="sum") / _labelled(masks).clamp(min=1)


def confusion_matrix(predicted: Tensor, masks: Tensor, num_classes: int) -> Tensor:
    """Pixels by their true class (rows) and their predicted class (columns), int64; pixels without a class left out."""
    from torchmetrics.functional.classification import multiclass_confusion_matrix

    return multiclass_confusion_matrix(
        predicted, masks, num_classes=num_classes, ignore_index=IGNORE, validate_args=False
    ).long()


def scores(confusion: Tensor) -> dict[str, float]:
    """What a confusion matrix says about a network.

    Args:
        confusion: Of `confusion_matrix`, or a sum of such.

    Returns:
        `miou`: intersection over union, mean over the classes that were predicted or were there. `macc`: share of its
        pixels that was found, mean over the classes that were there. `allacc`: share of all pixels that was found.
        Each is 0 where there is nothing to take a mean of.
    """
    table = confusion.cpu().double()  # not every device knows 64 bits
    right, true, predicted = table.diag(), table.sum(1), table.sum(0)
    union = true + predicted - right
    return {
        "miou": _mean(right[union > 0] / union[union > 0]),
        "macc": _mean(right[true > 0] / true[true > 0]),
        "allacc": float(right.sum() / table.sum().clamp(min=1)),
    }


def coloured(classes: Tensor, dataset: SegmentationDataset) -> Tensor:
    """Classes of pixels, (height, width), as a picture, (3, height, width) of uint8; without a class, black."""
    palette = torch.zeros(256, 3, dtype=torch.uint8)
    palette[: dataset.num_classes] = torch.tensor(list(dataset.classes.values()), dtype=torch.uint8)
    return palette[classes].permute(2, 0, 1)


def _smaller(image: Tensor, step: int) -> Tensor:
    """An image, (3, height, width) of uint8, with one pixel for each square of `step` × `step`."""
    return F.avg_pool2d(image.float(), step, ceil_mode=True).round().to(torch.uint8)


def _labelled(masks: Tensor) -> Tensor:
    return (masks != IGNORE).sum()


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else 0.0
