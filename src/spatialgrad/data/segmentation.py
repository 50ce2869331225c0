"""Data sets for segmentation: images with a class for every pixel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from spatialgrad.data.augment import IMAGENET_MEAN, IMAGENET_STD
from spatialgrad.data.batches import Batch, BatchDataset, Pass, Share
from spatialgrad.data.errors import CorruptDataError
from spatialgrad.data.files.images import open_image
from spatialgrad.data.files.listing import FileList
from spatialgrad.data.splits import FileSplit, MemorySplit
from spatialgrad.data.warp import STILL, Geometry, Size, crop_matrix, draw_move, warp_image, warp_mask

IGNORE = 255
"""The class of pixels that are ignored in training and evaluation."""
UNKNOWN = -1
"""In a label table: this label must not occur."""


@dataclass(frozen=True, eq=False)
class MaskFiles:
    """The masks of a split, decoded when they are needed.

    Attributes:
        files: The mask file of each image, 8 bits per pixel.
        tables: For each mask, the class of every label: shape (number, 256), int16, or one row for all.
    """

    files: FileList
    tables: np.ndarray

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        """The class of every pixel, uint8 of shape (height, width)."""
        table = self.tables[index if len(self.tables) > 1 else 0]
        return decode_mask(self.files.read(index), self.files.name(index), table)

    def content(self) -> list[Tensor | FileList]:
        """What they consist of."""
        return [self.files, torch.from_numpy(self.tables)]

    def select(self, indices: Tensor) -> MaskFiles:
        """The masks at `indices`, in that order."""
        rows = indices.numpy()
        return MaskFiles(self.files.select(rows), self.tables[rows] if len(self.tables) > 1 else self.tables)


def read_masked(split: FileSplit[MaskFiles], index: int, size: Size) -> tuple[Tensor, Tensor]:
    """Decode an image and its mask, and check that both have the height and width of their data set."""
    image, mask = split.read(index)
    if mask.shape != image.shape[1:]:
        raise CorruptDataError(
            f"{split.labels.files.name(index)} is {_across(mask.shape)} pixels, but its image {split.name(index)} is "
            f"{_across(image.shape[1:])}"
        )
    if tuple(mask.shape) != size:
        raise CorruptDataError(
            f"{split.name(index)} is {_across(mask.shape)} pixels, but the first image of its data set is "
            f"{_across(size)}"
        )
    return image, mask


@dataclass(frozen=True, kw_only=True, eq=False)
class SegmentationDataset(BatchDataset[Geometry]):
    """A data set for segmentation, for `train_batches` and `eval_batches`."""

    train: MemorySplit | FileSplit[MaskFiles]
    test: MemorySplit | FileSplit[MaskFiles]
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    classes: dict[str, tuple[int, int, int]]
    """The classes in order, each with the colour it is displayed in."""
    image_size: Size
    """Height and width of the images."""
    crop_size: Size
    """Height and width of the crops to train on."""

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    def with_crop_size(self, size: Size) -> SegmentationDataset:
        """The same data set with training crops of another size."""
        return replace(self, crop_size=size)

    def read(self, run: Pass[Geometry], indices: Tensor) -> Batch:
        """Images and masks, uint8: crops for training, whole images otherwise."""
        pairs = [self._read_one(run, index) for index in indices.tolist()]
        images, masks = (torch.stack(tensors) for tensors in zip(*pairs, strict=True))
        return images, masks

    def finish(self, run: Pass[Geometry], share: Share, images: Tensor, *targets: Tensor) -> Batch:
        """Normalized images, and masks as int64 of shape (number, height, width), in which `IGNORE` is not a class."""
        return super().finish(run, share, images, *(masks.long() for masks in targets))

    def _read_one(self, run: Pass[Geometry], index: int) -> tuple[Tensor, Tensor]:
        split = self.train if run.split == "train" else self.test
        if isinstance(split, MemorySplit):
            image, mask = split.read(index)
        else:
            image, mask = read_masked(split, index, self.image_size)
        if not run.training:
            return image, mask
        move = draw_move(run.augmentation or STILL, seed=run.seed, epoch=run.epoch, index=index)
        height, width = mask.shape
        matrix, fill = crop_matrix(move, (height, width), self.crop_size), tuple(255 * value for value in self.mean)
        return warp_image(image, matrix, self.crop_size, fill), warp_mask(mask, matrix, self.crop_size, IGNORE)


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
