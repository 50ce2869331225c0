"""A segmentation data set as the training engine sees it: images with a class for every pixel."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from spatialgrad.data.augment import normalize
from spatialgrad.data.batches import Batches
from spatialgrad.data.errors import CorruptDataError
from spatialgrad.data.files.image_files import ImageFiles
from spatialgrad.data.files.images import decode
from spatialgrad.data.paired_batches import paired_eval_batches, paired_train_batches
from spatialgrad.data.warp import STILL, Geometry, Size, crop_matrix, draw_move, warp_image, warp_mask

IGNORE = 255
"""The class of pixels that are neither learned nor counted."""
UNKNOWN = -1
"""In a table of labels: this label may not occur."""


class MaskedSplit(Protocol):
    """Images and their masks, in memory or in files."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """Where image `index` comes from."""
        ...

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        """Image `index`, (3, height, width), and its classes, (height, width), both uint8."""
        ...

    def select(self, indices: Tensor) -> Self:
        """The images at `indices`, in that order."""
        ...


@dataclass(frozen=True, eq=False)
class MaskFiles:
    """Images and masks that are decoded when they are needed.

    Attributes:
        images: Image files.
        masks: The mask file of each, 8 bits a pixel.
        tables: For each mask, the class of every label: shape (number, 256), int16, or one row for all.
        size: Height and width that all of them must have.
    """

    images: ImageFiles
    masks: ImageFiles
    tables: np.ndarray
    size: Size

    def __len__(self) -> int:
        return len(self.images.names)

    def name(self, index: int) -> str:
        """Where image `index` comes from."""
        return self.images.name(index)

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        """Decode an image and its mask, and check that they belong together."""
        name, mask_name = self.images.name(index), self.masks.name(index)
        image = torch.from_numpy(np.array(decode(self.images.read(index), name))).permute(2, 0, 1)
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
        """All of them, decoded once and for all."""
        images, masks = (torch.stack(tensors) for tensors in zip(*map(self.read, range(len(self))), strict=True))
        return MaskMemory(images, masks, tuple(map(self.name, range(len(self)))))


@dataclass(frozen=True, eq=False)
class MaskMemory:
    """Images and masks in memory.

    Attributes:
        images: Shape (number, 3, height, width), uint8.
        masks: Shape (number, height, width), uint8.
        names: Where each image comes from.
    """

    images: Tensor
    masks: Tensor
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.images)

    def name(self, index: int) -> str:
        """Where image `index` comes from."""
        return self.names[index]

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        """Image `index` and its mask."""
        return self.images[index], self.masks[index]

    def select(self, indices: Tensor) -> MaskMemory:
        """The images at `indices`, in that order."""
        return MaskMemory(self.images[indices], self.masks[indices], tuple(self.names[i] for i in indices.tolist()))


@dataclass(frozen=True, kw_only=True, eq=False)
class SegmentationDataset:
    """A segmentation data set, ready for `masked_train_batches` and `masked_eval_batches`."""

    name: str
    """The name it is loaded by."""
    description: str
    """What a report must call it."""
    train: MaskedSplit
    test: MaskedSplit
    classes: dict[str, tuple[int, int, int]]
    """The classes in their order, each with the colour it is shown in."""
    image_size: Size
    """Height and width of the images."""
    crop_size: Size
    """Height and width of the crops that are usually trained on."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """Mean of each channel for pixels in [0, 1]; ImageNet's, as backbones are trained on it."""
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    """Standard deviation of each channel."""

    def __post_init__(self) -> None:
        for split_name, split in (("train", self.train), ("test", self.test)):
            if not len(split):
                raise CorruptDataError(f"{self.name}: the {split_name} split has no images")

    @property
    def num_classes(self) -> int:
        """How many classes the masks tell apart."""
        return len(self.classes)

    def with_crop_size(self, size: Size) -> SegmentationDataset:
        """The same data set with other training crops."""
        return replace(self, crop_size=size)


def masked_train_batches(
    dataset: SegmentationDataset,
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    geometry: Geometry = STILL,
    rank: int = 0,
    world_size: int = 1,
    start: int = 0,
    device: torch.device | str = "cpu",
    num_workers: int = 0,
) -> Batches:
    """The training batches of one epoch: crops that were moved at random, and their masks.

    Args:
        dataset: Its `train` split is used.
        batch_size: Images per step, over all ranks.
        seed: Of the run.
        epoch: Another epoch has another order and other crops.
        geometry: How far images are moved; by default crops from the middle.
        rank: Of this process.
        world_size: Number of processes.
        start: The first batch to give.
        device: Where batches go.
        num_workers: Processes that decode and move images. It changes the speed only.

    Returns:
        An iterable, with a length, of float32 images (number, 3, height, width) and int64 masks
        (number, height, width), in which `IGNORE` is no class.
    """
    fill = tuple(255 * value for value in dataset.mean)
    batches = paired_train_batches(
        _MovedCrop(dataset.train, geometry, dataset.crop_size, fill, seed, epoch),
        len(dataset.train),
        batch_size,
        seed=seed,
        epoch=epoch,
        rank=rank,
        world_size=world_size,
        start=start,
        device=device,
        num_workers=num_workers,
    )
    return _normalized(batches, dataset)


def masked_eval_batches(
    dataset: SegmentationDataset,
    batch_size: int,
    *,
    rank: int = 0,
    world_size: int = 1,
    device: torch.device | str = "cpu",
    num_workers: int = 0,
) -> Batches:
    """The whole test images, each once over all ranks; for the arguments see `masked_train_batches`."""
    make = dataset.test.read
    batches = paired_eval_batches(
        make, len(dataset.test), batch_size, rank=rank, world_size=world_size, device=device, num_workers=num_workers
    )
    return _normalized(batches, dataset)


@dataclass(frozen=True, eq=False)
class _MovedCrop:
    """Makes image `index` and its mask, moved by the same matrix."""

    split: MaskedSplit
    geometry: Geometry
    crop: Size
    fill: tuple[float, ...]
    seed: int
    epoch: int

    def __call__(self, index: int) -> tuple[Tensor, ...]:
        image, mask = self.split.read(index)
        move = draw_move(self.geometry, seed=self.seed, epoch=self.epoch, index=index)
        height, width = mask.shape
        matrix = crop_matrix(move, (height, width), self.crop)
        return warp_image(image, matrix, self.crop, self.fill), warp_mask(mask, matrix, self.crop, IGNORE)


def _normalized(batches: Batches, dataset: SegmentationDataset) -> Batches:
    def produce() -> Iterator[tuple[Tensor, Tensor]]:
        for images, masks in batches:
            yield normalize(images, dataset.mean, dataset.std), masks.long()

    return Batches(len(batches), produce)


def label_table(classes: dict[int, int], ignored: Iterable[int] = (IGNORE,)) -> np.ndarray:
    """A table of labels: the class of each label of a mask file, `IGNORE`, or `UNKNOWN` for all others."""
    table = np.full(256, UNKNOWN, dtype=np.int16)
    table[list(ignored)] = IGNORE
    for label, number in classes.items():
        table[label] = number
    return table


def decode_mask(content: bytes, name: str, table: np.ndarray) -> Tensor:
    """Decode a mask file to the class of every pixel, (height, width) of uint8.

    Args:
        content: Of the file.
        name: Of the file, for errors.
        table: Of `label_table`.

    Raises:
        CorruptDataError: If it is truncated or damaged, does not have 8 bits a pixel, or has an unknown label.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=("PNG", "BMP")) as file:
            mode, labels = file.mode, np.array(file)
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise CorruptDataError(f"{name} cannot be decoded: {error}") from error
    if mode not in ("L", "P"):
        raise CorruptDataError(f"{name} is no mask: it has pixels of the kind {mode}, not one label of 8 bits each")
    found = table[labels]
    if (found == UNKNOWN).any():
        row, column = np.argwhere(found == UNKNOWN)[0].tolist()
        raise CorruptDataError(
            f"{name} has the unknown label {labels[row, column]} at row {row}, column {column}; known are "
            f"{', '.join(map(str, np.flatnonzero(table != UNKNOWN).tolist()))}"
        )
    return torch.from_numpy(found.astype(np.uint8))


def _across(size: Iterable[int]) -> str:
    height, width = size
    return f"{width}×{height}"
