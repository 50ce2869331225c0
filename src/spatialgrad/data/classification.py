"""Data sets for classification: images and labels, in memory or in files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Generic

import torch
from torch import Tensor

from spatialgrad.data.augment import CIFAR, Augmentation, augment, draw, to_device
from spatialgrad.data.batches import Batch, BatchDataset, Pass, Share
from spatialgrad.data.files.images import crop_centre, random_crop
from spatialgrad.data.rng import generator_for
from spatialgrad.data.splits import MemorySplit, S


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageDataset(BatchDataset[Augmentation], Generic[S]):
    """A data set for classification, for `train_batches` and `eval_batches`."""

    train: S
    test: S
    class_names: tuple[str, ...]
    image_size: int
    """Height and width of the images in a batch."""
    augmentation: Augmentation = CIFAR
    """The usual augmentation of its training images."""
    warps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.mean) != len(self.std) or not all(value > 0 for value in self.std):
            raise ValueError(f"{self.name}: mean {self.mean} and std {self.std} do not match")
        for split_name, labels in (("train", self.train.labels), ("test", self.test.labels)):
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

    def with_image_size(self, size: int) -> ImageDataset[S]:
        """The same data set with batches of `size` × `size` images.

        Images in memory are padded with black; images in files are resized when they are decoded.
        """
        if size < 1:
            raise ValueError(f"image size must be positive, got {size}")
        resized = replace(self, image_size=size)
        if not isinstance(self.train, MemorySplit):
            return resized
        return replace(resized, train=self.train.with_image_size(size), test=self.test.with_image_size(size))

    def to(self, device: torch.device | str) -> ImageDataset[S]:
        """The same data set, with its images moved to another device if they are in memory."""
        if not isinstance(self.train, MemorySplit):
            return self
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
        images = []
        for index in indices.tolist():
            if area is None:
                images.append(crop_centre(split.decode(index), self.image_size))
            else:
                # Each crop is drawn from its own generator: neither the workers nor their order matter.
                generator = generator_for("resized crop", run.seed, run.epoch, index)
                images.append(random_crop(split.decode(index), self.image_size, area, generator))
        return torch.stack(images), split.labels[indices]

    def finish(self, run: Pass[Augmentation], share: Share, images: Tensor, *targets: Tensor) -> Batch:
        """Normalize images, and augment them for training."""
        if not run.training:
            return super().finish(run, share, images, *targets)
        draws = draw(share.batch_size, generator_for("augment", run.seed, run.epoch, share.batch))
        part = draws.part(share.first, share.first + len(images))
        return augment(images, run.augmentation or Augmentation(), part, mean=self.mean, std=self.std), *targets
