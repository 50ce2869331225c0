"""Data sets for classification: images and labels, in memory or in files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from spatialgrad.data.augment import CIFAR, Augmentation, augment, draw, normalize
from spatialgrad.data.batches import Batch, Request, load_items
from spatialgrad.data.files.images import SquareCrop, crop_square, decode
from spatialgrad.data.files.listing import FileList
from spatialgrad.data.rng import generator_for

Loaded = Iterator[Batch]
"""Images and labels, batch by batch."""


class Split(Protocol):
    """The training or the test images of an `ImageDataset`."""

    @property
    def labels(self) -> Tensor:
        """The class of every image, int64."""
        ...

    def __len__(self) -> int: ...

    def select(self, indices: Tensor) -> Self:
        """The images at `indices`, in that order."""
        ...

    def with_image_size(self, size: int) -> Self:
        """The same images as squares of `size`."""
        ...

    def to(self, device: torch.device | str) -> Self:
        """The same images, moved to another device if they are in memory."""
        ...

    def load(self, batches: Sequence[Tensor], crop: SquareCrop, *, device: torch.device, num_workers: int) -> Loaded:
        """Load images (uint8, number × channels × size × size) and labels of each batch of indices."""
        ...


@dataclass(frozen=True, eq=False)
class MemorySplit:
    """Images in memory, as uint8: all of CIFAR takes 180 MB.

    Attributes:
        images: Shape (number, channels, height, width), uint8.
        labels: Shape (number,), int64.
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(
                f"images must be uint8 of shape (number, channels, height, width), "
                f"got {self.images.dtype} of shape {tuple(self.images.shape)}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"labels must be int64 of shape ({len(self.images)},), "
                f"got {self.labels.dtype} of shape {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: Tensor) -> MemorySplit:
        """The images at `indices`, in that order."""
        return MemorySplit(self.images[indices], self.labels[indices])

    def with_image_size(self, size: int) -> MemorySplit:
        """The images centred in black squares of `size`."""
        height, width = self.images.shape[2:]
        if size < max(height, width):
            raise ValueError(f"images of {height}×{width} can be padded to a larger size, but not reduced to {size}")
        top, left = (size - height) // 2, (size - width) // 2
        padding = (left, size - width - left, top, size - height - top)
        return MemorySplit(torch.nn.functional.pad(self.images, padding), self.labels)

    def to(self, device: torch.device | str) -> MemorySplit:
        """The same images on another device, where batches are then assembled."""
        return MemorySplit(self.images.to(device), self.labels.to(device))

    def load(self, batches: Sequence[Tensor], crop: SquareCrop, *, device: torch.device, num_workers: int) -> Loaded:
        """Load images and labels of each batch of indices; see `Split.load`."""
        if crop.area is not None:
            raise ValueError("random resized crops are for images in files; use crop_padding for images in memory")
        for indices in batches:
            rows = indices.to(self.images.device)
            yield self.images[rows].to(device), self.labels[rows].to(device)


@dataclass(frozen=True, eq=False)
class FolderSplit:
    """Images in files, decoded when they are needed.

    Each random crop is drawn from its own generator, seeded with (seed, epoch, index): neither the number of workers
    nor the order in which they finish matters.

    Attributes:
        files: The image files.
        labels: Shape (number,), int64.
    """

    files: FileList
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: Tensor) -> FolderSplit:
        """The images at `indices`, in that order."""
        return FolderSplit(self.files.select(indices.numpy()), self.labels[indices])

    def with_image_size(self, size: int) -> FolderSplit:
        """The split itself: images are resized when they are decoded."""
        return self

    def to(self, device: torch.device | str) -> FolderSplit:
        """The split itself: images are decoded in main memory, from which batches are sent to the device."""
        return self

    def load(self, batches: Sequence[Tensor], crop: SquareCrop, *, device: torch.device, num_workers: int) -> Loaded:
        """Load images and labels of each batch of indices; see `Split.load`."""
        return load_items(partial(self._make, crop), batches, device=device, num_workers=num_workers)

    def _make(self, crop: SquareCrop, index: int) -> Batch:
        image = decode(self.files.read(index), self.files.name(index))
        return crop_square(image, crop, index), self.labels[index]


S = TypeVar("S", bound=Split)


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

    def load(self, request: Request[Augmentation]) -> Loaded:
        """Load normalized images, augmented for training, and their labels; see `train_batches` and `eval_batches`."""
        split: Split = self.train if request.split == "train" else self.test
        config = request.augmentation or Augmentation()
        crop = SquareCrop(size=self.image_size, area=config.resized_crop, seed=request.seed, epoch=request.epoch)
        batches = [share.indices for share in request.shares]
        loaded = split.load(batches, crop, device=request.device, num_workers=request.num_workers)
        for share, (images, labels) in zip(request.shares, loaded, strict=True):
            if not request.training:
                yield normalize(images, self.mean, self.std), labels
                continue
            draws = draw(share.batch_size, generator_for("augment", request.seed, request.epoch, share.batch))
            part = draws.part(share.first, share.first + len(labels))
            yield augment(images, config, part, mean=self.mean, std=self.std), labels
