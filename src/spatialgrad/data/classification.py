"""Data sets for classification: images and labels, in memory or in files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, Literal

import torch
from torch import Tensor

from spatialgrad.data.augment import CIFAR, Augmentation, augment, draw, normalize, to_device
from spatialgrad.data.batches import Batch, Pass, Share
from spatialgrad.data.files.images import SquareCrop, crop_square
from spatialgrad.data.rng import generator_for
from spatialgrad.data.splits import MemorySplit, S, stratified_indices


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageDataset(Generic[S]):
    """A data set for classification, for `train_batches` and `eval_batches`."""

    name: str
    """The name it is loaded by, such as `cifar10`."""
    description: str
    """Its name in reports; a subset is described as such."""
    train: S
    test: S
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    """Mean of each channel for pixels in [0, 1]."""
    std: tuple[float, ...]
    """Standard deviation of each channel for pixels in [0, 1]."""
    image_size: int
    """Height and width of the images in a batch."""
    augmentation: Augmentation = CIFAR
    """The usual augmentation of its training images."""

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(value > 0 for value in self.std):
            raise ValueError(f"{self.name}: mean {self.mean} and std {self.std} do not match")
        for split_name, labels in (("train", self.train.labels), ("test", self.test.labels)):
            if not len(labels):
                raise ValueError(f"{self.name}: the {split_name} split has no images")
            low, high = int(labels.min()), int(labels.max())
            if low < 0 or high >= self.num_classes:
                raise ValueError(
                    f"{self.name}: the {split_name} labels are {low} to {high}, "
                    f"but there are {self.num_classes} classes"
                )

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def channels(self) -> int:
        """Number of colour channels: `in_channels` of a model."""
        return len(self.mean)

    @property
    def worker_use(self) -> Literal["never", "by default"]:
        """Worker processes decode image files; images in memory need none."""
        return "never" if isinstance(self.train, MemorySplit) else "by default"

    def with_image_size(self, size: int) -> ImageDataset[S]:
        """The same data set with batches of `size` × `size` images.

        Images in memory are padded with black; images in files are resized when they are decoded.
        """
        if size < 1:
            raise ValueError(f"image size must be positive, got {size}")
        train, test = self.train.with_image_size(size), self.test.with_image_size(size)
        return replace(self, train=train, test=test, image_size=size)

    def to(self, device: torch.device | str) -> ImageDataset[S]:
        """The same data set, with its images moved to another device if they are in memory."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def read(self, run: Pass[Augmentation], indices: Tensor) -> Batch:
        """Images, uint8 of shape (number, channels, size, size), and labels."""
        split = self.train if run.split == "train" else self.test
        area = run.augmentation.resized_crop if run.augmentation is not None else None
        if isinstance(split, MemorySplit):
            if area is not None:
                raise ValueError("random resized crops are for images in files; use crop_padding for images in memory")
            rows = to_device(indices, split.images.device)
            return split.images[rows], split.labels[rows]
        # Each random crop is drawn from its own generator: neither the workers nor their order matter.
        crop = SquareCrop(size=self.image_size, area=area, seed=run.seed, epoch=run.epoch)
        images = [crop_square(split.decode(index), crop, index) for index in indices.tolist()]
        return torch.stack(images), split.labels[indices]

    def finish(self, run: Pass[Augmentation], share: Share, images: Tensor, *targets: Tensor) -> Batch:
        """Normalize images, and augment them for training."""
        if not run.training:
            return normalize(images, self.mean, self.std), *targets
        draws = draw(share.batch_size, generator_for("augment", run.seed, run.epoch, share.batch))
        part = draws.part(share.first, share.first + len(images))
        return augment(images, run.augmentation or Augmentation(), part, mean=self.mean, std=self.std), *targets


def validation_split(dataset: ImageDataset[S], fraction: float = 0.2, *, seed: int = 0) -> ImageDataset[S]:
    """A data set for a search: one part of the training images to train on, the other to test on.

    It does not contain the real test images, so that no choice can be based on them by mistake.
    """
    kept, held_out = stratified_indices(dataset.train.labels, fraction, seed=seed)
    if not len(kept) or not len(held_out):
        raise ValueError(
            f"--data.validation {fraction} holds out {len(held_out)} of the {len(dataset.train)} training images of "
            f"{dataset.name}; it must leave some of them, but not all"
        )
    return replace(
        dataset,
        description=f"{dataset.description}, {fraction:.0%} of the training images held out (seed {seed})",
        train=dataset.train.select(kept),
        test=dataset.train.select(held_out),
    )
