"""A data set as the training engine sees it: two splits and what is known about their images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor


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
