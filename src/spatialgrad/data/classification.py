"""A data set as the training engine sees it: two splits and what is known about their images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from spatialgrad.data.augment import CIFAR, Augmentation


@dataclass(frozen=True, kw_only=True)
class ResizedCrop:
    """Random-resized crops of one epoch: image i's crop is a function of seed, epoch and i."""

    seed: int
    epoch: int
    area: tuple[float, float]


class Split(Protocol):
    """What every split offers, whether its images live in memory or in files."""

    @property
    def labels(self) -> Tensor:
        """Class of every image, int64."""
        ...

    def __len__(self) -> int: ...

    def select(self, indices: Tensor) -> Self:
        """The images at `indices`, in that order, as a split of the same kind."""
        ...

    def with_image_size(self, size: int) -> Self:
        """The same images, to be had as squares of `size`."""
        ...

    def to(self, device: torch.device | str) -> Self:
        """The same images, kept on another device if they are in memory."""
        ...

    def load(
        self,
        batches: Sequence[Tensor],
        *,
        image_size: int,
        resized_crop: ResizedCrop | None,
        device: torch.device,
        num_workers: int,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Images (uint8, number × channels × image_size × image_size) and labels of each list of indices."""
        ...


@dataclass(frozen=True, eq=False)
class MemorySplit:
    """Images in memory, as uint8: the whole of CIFAR takes 180 MB.

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
        """The images in the middle of black squares of `size`."""
        height, width = self.images.shape[2:]
        if size < max(height, width):
            raise ValueError(f"images of {height}×{width} can be padded to a larger size, not cut to {size}")
        top, left = (size - height) // 2, (size - width) // 2
        padding = (left, size - width - left, top, size - height - top)
        return MemorySplit(torch.nn.functional.pad(self.images, padding), self.labels)

    def to(self, device: torch.device | str) -> MemorySplit:
        """The same images on another device: batches are then put together there."""
        return MemorySplit(self.images.to(device), self.labels.to(device))

    def load(
        self,
        batches: Sequence[Tensor],
        *,
        image_size: int,
        resized_crop: ResizedCrop | None,
        device: torch.device,
        num_workers: int,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels of each list of indices; see `Split.load`."""
        if resized_crop is not None:
            raise ValueError("random-resized crops are for images in files; use crop_padding for images in memory")
        for indices in batches:
            rows = indices.to(self.images.device)
            yield self.images[rows].to(device), self.labels[rows].to(device)


S = TypeVar("S", bound=Split)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageDataset(Generic[S]):
    """A classification data set, ready for `train_batches` and `eval_batches`."""

    name: str
    """The name it is loaded by, such as `cifar10`."""
    description: str
    """What a report must call it: a subset says that it is one."""
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
    """What is usually done to its training images."""

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(value > 0 for value in self.std):
            raise ValueError(f"{self.name}: mean {self.mean} and std {self.std} do not belong together")
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
        """How many classes the labels tell apart."""
        return len(self.class_names)

    @property
    def channels(self) -> int:
        """Colour channels of an image: `in_channels` of a model."""
        return len(self.mean)

    def with_image_size(self, size: int) -> ImageDataset[S]:
        """The same data set with batches of `size` × `size` images.

        Images in memory are padded with black; images in files are cropped to it while they are decoded.
        """
        if size < 1:
            raise ValueError(f"image size must be positive, got {size}")
        return replace(
            self,
            train=self.train.with_image_size(size),
            test=self.test.with_image_size(size),
            image_size=size,
        )

    def to(self, device: torch.device | str) -> ImageDataset[S]:
        """The same data set with its images on another device, if they are in memory."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))
