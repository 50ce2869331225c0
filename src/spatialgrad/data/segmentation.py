"""Data sets for segmentation: images with a class for every pixel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from spatialgrad.data.augment import normalize
from spatialgrad.data.batches import Batch, Make, Request, load_items
from spatialgrad.data.errors import CorruptDataError
from spatialgrad.data.files.images import decode, open_image, to_tensor
from spatialgrad.data.files.listing import FileList
from spatialgrad.data.warp import STILL, Geometry, Size, crop_matrix, draw_move, warp_image, warp_mask

IGNORE = 255
"""The class of pixels that are ignored in training and evaluation."""
UNKNOWN = -1
"""In a label table: this label must not occur."""


class MaskedSplit(Protocol):
    """Images and their masks, in memory or in files."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """The file of image `index`."""
        ...

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        """Image `index`, (3, height, width), and its classes, (height, width), both uint8."""
        ...

    def select(self, indices: Tensor) -> Self:
        """The images at `indices`, in that order."""
        ...


@dataclass(frozen=True, eq=False)
class MaskFiles:
    """Images and masks in files, decoded when they are needed.

    Attributes:
        images: Image files.
        masks: The mask file of each image, 8 bits per pixel.
        tables: For each mask, the class of every label: shape (number, 256), int16, or one row for all.
        size: Height and width that all of them must have.
    """

    images: FileList
    masks: FileList
    tables: np.ndarray
    size: Size

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        """The file of image `index`."""
        return self.images.name(index)

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        """Decode an image and its mask, and check that their sizes match."""
        name, mask_name = self.images.name(index), self.masks.name(index)
        image = to_tensor(decode(self.images.read(index), name))
        table = self.tables[index if len(self.tables) > 1 else 0]
        mask = decode_mask(self.masks.read(index), mask_name, table)
        if mask.shape != image.shape[1:]:
            raise CorruptDataError(
                f"{mask_name} is {_across(mask.shape)} pixels, but its image {name} is {_across(image.shape[1:])}"
            )
        if tuple(mask.shape) != self.size:
            raise CorruptDataError(
                f"{name} is {_across(mask.shape)} pixels, but the first image of its data set is {_across(self.size)}"
            )
        return image, mask

    def select(self, indices: Tensor) -> MaskFiles:
        """The images at `indices`, in that order."""
        rows = indices.numpy()
        tables = self.tables[rows] if len(self.tables) > 1 else self.tables
        return MaskFiles(self.images.select(rows), self.masks.select(rows), tables, self.size)

    def in_memory(self) -> MaskMemory:
        """All images and masks, decoded."""
        images, masks = (torch.stack(tensors) for tensors in zip(*map(self.read, range(len(self))), strict=True))
        return MaskMemory(images, masks, tuple(map(self.name, range(len(self)))))


@dataclass(frozen=True, eq=False)
class MaskMemory:
    """Images and masks in memory.

    Attributes:
        images: Shape (number, 3, height, width), uint8.
        masks: Shape (number, height, width), uint8.
        names: The file of each image.
    """

    images: Tensor
    masks: Tensor
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        """The file of image `index`."""
        return self.names[index]

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        """Image `index` and its mask."""
        return self.images[index], self.masks[index]

    def select(self, indices: Tensor) -> MaskMemory:
        """The images at `indices`, in that order."""
        return MaskMemory(self.images[indices], self.masks[indices], tuple(self.names[i] for i in indices.tolist()))


@dataclass(frozen=True, kw_only=True, eq=False)
class SegmentationDataset:
    """A data set for segmentation, for `train_batches` and `eval_batches`."""

    name: str
    """The name it is loaded by, such as `camvid`."""
    description: str
    """Its name in reports; a subset is described as such."""
    train: MaskedSplit
    test: MaskedSplit
    classes: dict[str, tuple[int, int, int]]
    """The classes in order, each with the colour it is displayed in."""
    image_size: Size
    """Height and width of the images."""
    crop_size: Size
    """Height and width of the crops to train on."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """Mean of each channel for pixels in [0, 1]; ImageNet's, on which backbones are trained."""
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    """Standard deviation of each channel for pixels in [0, 1]."""

    def __post_init__(self) -> None:
        for split_name, split in (("train", self.train), ("test", self.test)):
            if not len(split):
                raise CorruptDataError(f"{self.name}: the {split_name} split has no images")

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    def with_crop_size(self, size: Size) -> SegmentationDataset:
        """The same data set with training crops of another size."""
        return replace(self, crop_size=size)

    def load(self, request: Request[Geometry]) -> Iterator[Batch]:
        """Load normalized images and their masks: crops for training, whole images otherwise.

        Masks are int64 of shape (number, height, width), in which `IGNORE` is not a class.
        """
        split = self.train if request.split == "train" else self.test
        make: Make = split.read
        if request.training:
            geometry, fill = request.augmentation or STILL, tuple(255 * value for value in self.mean)
            make = _MovedCrop(split, geometry, self.crop_size, fill, request.seed, request.epoch)
        batches = [share.indices for share in request.shares]
        for images, masks in load_items(make, batches, device=request.device, num_workers=request.num_workers):
            yield normalize(images, self.mean, self.std), masks.long()


@dataclass(frozen=True, eq=False)
class _MovedCrop:
    """Makes image `index` and its mask, warped by the same matrix."""

    split: MaskedSplit
    geometry: Geometry
    crop: Size
    fill: tuple[float, ...]
    seed: int
    epoch: int

    def __call__(self, index: int) -> Batch:
        image, mask = self.split.read(index)
        move = draw_move(self.geometry, seed=self.seed, epoch=self.epoch, index=index)
        height, width = mask.shape
        matrix = crop_matrix(move, (height, width), self.crop)
        return warp_image(image, matrix, self.crop, self.fill), warp_mask(mask, matrix, self.crop, IGNORE)


def label_table(classes: dict[int, int], ignored: Iterable[int] = (IGNORE,)) -> np.ndarray:
    """A label table: for each label of a mask file, its class, `IGNORE`, or `UNKNOWN`."""
    table = np.full(256, UNKNOWN, dtype=np.int16)
    table[list(ignored)] = IGNORE
    for label, number in classes.items():
        table[label] = number
    return table


def decode_mask(content: bytes, name: str, table: np.ndarray) -> Tensor:
    """Decode a mask file to the class of every pixel, (height, width) of uint8.

    Args:
        content: The bytes of the file.
        name: The name of the file, for errors.
        table: From `label_table`.

    Raises:
        CorruptDataError: If it is truncated or damaged, does not have 8 bits per pixel, or contains an unknown label.
    """
    with open_image(content, name, ("PNG", "BMP")) as file:
        mode, labels = file.mode, np.array(file)
    if mode not in ("L", "P"):
        raise CorruptDataError(f"{name} is not a mask: its pixel format is {mode}, not one 8-bit label per pixel")
    found = table[labels]
    if (found == UNKNOWN).any():
        row, column = np.argwhere(found == UNKNOWN)[0].tolist()
        raise CorruptDataError(
            f"{name} contains the unknown label {labels[row, column]} at row {row}, column {column}; known labels are "
            f"{', '.join(map(str, np.flatnonzero(table != UNKNOWN).tolist()))}"
        )
    return torch.from_numpy(found.astype(np.uint8))


def _across(size: Iterable[int]) -> str:
    height, width = size
    return f"{width}×{height}"
