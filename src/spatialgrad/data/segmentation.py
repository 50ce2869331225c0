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
from spatialgrad.data.files.images import decode, image_size, open_image, to_tensor
from spatialgrad.data.files.listing import FileList
from spatialgrad.data.splits import MemorySplit
from spatialgrad.data.warp import STILL, Geometry, Size, crop_matrix, draw_move, warp_image, warp_mask

IGNORE = 255
"""The class of pixels that are ignored in training and evaluation."""
UNKNOWN = -1
"""In a label table: this label must not occur."""


@dataclass(frozen=True, eq=False)
class MaskSplit:
    """Images and masks in files, decoded when they are needed.

    Attributes:
        files: The image files.
        masks: The mask file of each image, 8 bits per pixel.
        tables: For each mask, the class of every label: shape (number, 256), int16.
        size: Height and width of the images.
    """

    files: FileList
    masks: FileList
    tables: np.ndarray
    size: Size

    def __len__(self) -> int:
        return len(self.files)

    def content(self) -> list[Tensor | FileList]:
        """What it consists of."""
        return [self.files, self.masks, torch.from_numpy(self.tables)]

    def name(self, index: int) -> str:
        """The file of image `index`."""
        return self.files.name(index)

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        """Image `index`, uint8 of shape (3, height, width), and the class of every pixel, uint8 of (height, width)."""
        image = to_tensor(decode(self.files.read(index), self.name(index)))
        mask = decode_mask(self.masks.read(index), self.masks.name(index), self.tables[index])
        found = [f"{width}×{height}" for height, width in (image.shape[1:], mask.shape, self.size)]
        if len(set(found)) > 1:
            raise CorruptDataError(
                f"{self.name(index)} is {found[0]} pixels, its mask {self.masks.name(index)} is {found[1]}, and the "
                f"first image of the data set is {found[2]}; all must have one size"
            )
        return image, mask

    def select(self, indices: Tensor) -> MaskSplit:
        """The images and masks at `indices`, in that order."""
        rows = indices.numpy()
        return MaskSplit(self.files.select(rows), self.masks.select(rows), self.tables[rows], self.size)


@dataclass(frozen=True, kw_only=True, eq=False)
class SegmentationDataset(BatchDataset[Geometry]):
    """A data set for segmentation, for `train_batches` and `eval_batches`."""

    train: MemorySplit | MaskSplit
    test: MemorySplit | MaskSplit
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
        image, mask = split.read(index)
        if not run.training:
            return image, mask
        move = draw_move(run.augmentation or STILL, seed=run.seed, epoch=run.epoch, index=index)
        height, width = mask.shape
        matrix, fill = crop_matrix(move, (height, width), self.crop_size), tuple(255 * value for value in self.mean)
        return warp_image(image, matrix, self.crop_size, fill), warp_mask(mask, matrix, self.crop_size, IGNORE)


def mask_split(files: FileList, images: list[int], masks: list[int], tables: list[np.ndarray]) -> MaskSplit:
    """Some of the files as images, each with its mask and the table of its labels."""
    chosen = files.select(images)
    with chosen.open(0) as file:
        width, height = image_size(file, chosen.name(0))
    return MaskSplit(chosen, files.select(masks), np.stack(tables), (height, width))


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
