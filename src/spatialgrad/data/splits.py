"""The images of a split with their labels, in memory or in files, and how a part of them is held out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from spatialgrad.data.batches import BatchDataset
from spatialgrad.data.files.images import decode
from spatialgrad.data.files.listing import FileList
from spatialgrad.data.rng import generator_for

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, eq=False)
class MemorySplit:
    """Images in memory, as uint8: all of CIFAR takes 180 MB.

    Attributes:
        images: Shape (number, channels, height, width), uint8.
        labels: The class of every image, int64 of shape (number,), or of every pixel, uint8 of shape (number, height,
            width).
        files: Where the images were decoded from, if they were.
    """

    images: Tensor
    labels: Tensor
    files: FileList | None = None

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(
                f"images must be uint8 of shape (number, channels, height, width), "
                f"got {self.images.dtype} of shape {tuple(self.images.shape)}"
            )
        number, _, height, width = self.images.shape
        if (self.labels.dtype, self.labels.shape) not in (
            (torch.int64, (number,)),
            (torch.uint8, (number, height, width)),
        ):
            raise ValueError(
                f"labels must be int64 of shape ({number},), or uint8 of shape ({number}, {height}, {width}), "
                f"got {self.labels.dtype} of shape {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.images)

    def content(self) -> list[Tensor | FileList]:
        """What it consists of; images that were decoded are represented by their files, as decoders differ."""
        return [self.images if self.files is None else self.files, self.labels]

    def name(self, index: int) -> str:
        """The file of image `index`, or its number."""
        return f"image {index}" if self.files is None else self.files.name(index)

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        """Image `index` and its label."""
        return self.images[index], self.labels[index]

    def select(self, indices: Tensor) -> MemorySplit:
        """The images at `indices`, in that order."""
        files = None if self.files is None else self.files.select(indices.numpy())
        return MemorySplit(self.images[indices], self.labels[indices], files)

    def with_image_size(self, size: int) -> MemorySplit:
        """The images centred in black squares of `size`."""
        height, width = self.images.shape[2:]
        if size < max(height, width):
            raise ValueError(f"images of {height}×{width} can be padded to a larger size, but not reduced to {size}")
        top, left = (size - height) // 2, (size - width) // 2
        padding = (left, size - width - left, top, size - height - top)
        return replace(self, images=torch.nn.functional.pad(self.images, padding))

    def to(self, device: torch.device | str) -> MemorySplit:
        """The same images on another device, where batches are then assembled."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))


@dataclass(frozen=True, eq=False)
class FileSplit:
    """Images in files, decoded when they are needed.

    Attributes:
        files: The image files.
        labels: The class of every image, int64 of shape (number,).
    """

    files: FileList
    labels: Tensor

    def __len__(self) -> int:
        return len(self.files)

    def content(self) -> list[Tensor | FileList]:
        """What it consists of."""
        return [self.files, self.labels]

    def decode(self, index: int) -> Image:
        """Image `index`, in RGB."""
        return decode(self.files.read(index), self.files.name(index))

    def select(self, indices: Tensor) -> FileSplit:
        """The images at `indices`, in that order."""
        return FileSplit(self.files.select(indices.numpy()), self.labels[indices])


S = TypeVar("S", MemorySplit, FileSplit)
"""The training or the test images of a data set for classification."""
D = TypeVar("D", bound=BatchDataset[Any])


def stratified_indices(labels: Tensor, fraction: float, *, seed: int) -> tuple[Tensor, Tensor]:
    """Hold out the same fraction of every class.

    Args:
        labels: Shape (number,), int64.
        fraction: Fraction to hold out, within (0, 1).
        seed: Determines which images are held out.

    Returns:
        Indices that are kept and indices that are held out, both ascending. `round(fraction * number)` are held out:
        from each class its exact share, rounded up or down.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must be between 0 and 1, got {fraction}")
    labels = labels.cpu()
    exact = torch.bincount(labels).double() * fraction
    counts = exact.floor().long()
    # Round up the largest remainders, so that the total is right; with `stable`, the first class wins ties.
    missing = round(fraction * len(labels)) - int(counts.sum())
    counts[torch.argsort(exact - counts, descending=True, stable=True)[:missing]] += 1
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label, count in enumerate(counts.tolist()):
        members = torch.nonzero(labels == label).flatten()
        chosen = torch.randperm(len(members), generator=generator_for("split", seed, label))[:count]
        held_out[members[chosen]] = True
    return torch.nonzero(~held_out).flatten(), torch.nonzero(held_out).flatten()


def hold_out(split: Any, fraction: float, *, seed: int) -> tuple[Tensor, Tensor]:
    """Hold out the same fraction of every class, or random images if they have no classes.

    Returns:
        As `stratified_indices`.
    """
    labels = getattr(split, "labels", None)
    if isinstance(labels, Tensor) and labels.ndim == 1:
        return stratified_indices(labels, fraction, seed=seed)
    return random_indices(len(split), round(fraction * len(split)), seed=seed)


def random_indices(count: int, wanted: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Indices of `count` images that are kept, and of `wanted` random ones that are held out, both ascending."""
    order = torch.randperm(count, generator=generator_for("random split", seed))
    return order[wanted:].sort().values, order[:wanted].sort().values


def validation_split(dataset: D, fraction: float = 0.2, *, seed: int = 0) -> D:
    """A data set for a search: one part of the training images to train on, the other to test on.

    It does not contain the real test images, so that no choice can be based on them by mistake.
    """
    count, number = len(dataset.train), round(fraction * len(dataset.train))
    if not 0 < number < count:
        raise ValueError(
            f"--data.validation {fraction} holds out {number} of the {count} training images of {dataset.name}; it "
            "must leave some of them, but not all"
        )
    kept, held_out = hold_out(dataset.train, fraction, seed=seed)
    return replace(
        dataset,
        description=f"{dataset.description}, {fraction:.0%} of the training images held out (seed {seed})",
        train=dataset.train.select(kept),
        test=dataset.train.select(held_out),
    )
