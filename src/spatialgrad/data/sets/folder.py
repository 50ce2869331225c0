"""Class folders of image files, as ImageNet is usually laid out: `train/<class>/…` and `val/<class>/…`.

Images are decoded with Pillow in the worker processes of a DataLoader. Each random crop is drawn from a
generator of its own, seeded with (seed, epoch, index): neither the number of workers nor the order in which
they finish can matter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from spatialgrad.data.augment import IMAGENET
from spatialgrad.data.classification import ImageDataset, ResizedCrop
from spatialgrad.data.errors import CorruptDataError, DataError, MissingDataError
from spatialgrad.data.files.archives import extract, is_archive, stem
from spatialgrad.data.files.image_files import Entry, ImageFiles, scan
from spatialgrad.data.files.images import crop_and_resize, decode, resize_and_crop
from spatialgrad.data.source import Report, Source

PREFIX = "folder:"
TEST_NAMES = ("val", "valid", "validation", "test")
"""What the folder beside `train` may be called; `test` last, because ImageNet's has no classes."""


@dataclass(frozen=True, eq=False)
class FolderSplit:
    """Images that are decoded when they are needed.

    Attributes:
        files: The image files.
        labels: Shape (number,), int64.
    """

    files: ImageFiles
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, indices: Tensor) -> FolderSplit:
        """The images at `indices`, in that order."""
        return FolderSplit(self.files.select(indices.numpy()), self.labels[indices])

    def with_image_size(self, size: int) -> FolderSplit:
        """Itself: images get their size when they are decoded."""
        return self

    def to(self, device: torch.device | str) -> FolderSplit:
        """Itself: images are decoded in main memory, and batches sent from there."""
        return self

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
        loader = DataLoader(
            _Decoder(self.files, image_size, resized_crop),
            batch_sampler=[batch.tolist() for batch in batches],
            collate_fn=_unchanged,
            num_workers=num_workers,
            pin_memory=device.type == "cuda",
            # Without one of its own, a DataLoader draws from the global generator and so changes the run.
            generator=torch.Generator(),
        )
        for indices, images in zip(batches, loader, strict=True):
            if isinstance(images, DataError):
                raise images
            yield images.to(device, non_blocking=True), self.labels[indices].to(device)


class _Decoder(Dataset[Tensor]):
    """Decodes whole batches, in worker processes."""

    def __init__(self, files: ImageFiles, image_size: int, resized_crop: ResizedCrop | None) -> None:
        self.files = files
        self.image_size = image_size
        self.resized_crop = resized_crop

    def __getitems__(self, indices: list[int]) -> Tensor | DataError:
        try:
            return torch.stack([self[index] for index in indices])
        except DataError as error:
            # As a value: a DataLoader would put the worker's whole traceback into its message.
            return error

    def __getitem__(self, index: int) -> Tensor:
        image = decode(self.files.read(index), self.files.name(index))
        if self.resized_crop is None:
            return resize_and_crop(image, self.image_size)
        return crop_and_resize(image, self.image_size, self.resized_crop, index)


def _unchanged(batch: Any) -> Any:
    return batch


def read(place: Path, *, name: str | None = None, title: str | None = None) -> ImageDataset[FolderSplit]:
    """Read a tree of class folders; no image is opened yet.

    Args:
        place: A folder or a plain tar archive with `train/<class>/…` and `val/<class>/…`.
        name: Of the data set; by default `folder:` and the place.
        title: What a report calls it before the number of classes; by default the place's last name.
    """
    root, is_tar, entries = scan(place)
    splits = {entry.split for entry in entries}
    test_name = next((candidate for candidate in TEST_NAMES if candidate in splits), None)
    if "train" not in splits or test_name is None:
        raise CorruptDataError(
            f"{place} does not have images in both train/<class>/ and val/<class>/ "
            f"(or {', '.join(f'{candidate}/' for candidate in TEST_NAMES[1:])})"
        )
    class_names = tuple(sorted({entry.class_name for entry in entries if entry.split == "train"}))
    train, test = (
        _split([entry for entry in entries if entry.split == wanted], root, is_tar, class_names)
        for wanted in ("train", test_name)
    )
    return ImageDataset(
        name=name or f"{PREFIX}{place}",
        description=f"{title or place.name.removesuffix('.tar')}, {len(class_names)} classes",
        train=train,
        test=test,
        class_names=class_names,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        image_size=224,
        augmentation=IMAGENET,
    )


def _split(entries: list[Entry], root: Path, is_tar: bool, class_names: tuple[str, ...]) -> FolderSplit:
    numbers = {class_name: number for number, class_name in enumerate(class_names)}
    for entry in entries:
        if entry.class_name not in numbers:
            raise CorruptDataError(f"{root / entry.name} is of the class {entry.class_name}, which train/ has not")
    names = np.array([os.fsencode(entry.name) for entry in entries])
    spans = np.array([(entry.start, entry.size) for entry in entries], dtype=np.int64) if is_tar else None
    labels = torch.tensor([numbers[entry.class_name] for entry in entries], dtype=torch.int64)
    return FolderSplit(ImageFiles(root, names, spans), labels)


def source(name: str) -> Source:
    """The source of `folder:PATH`, where PATH is a folder or an archive."""
    path = Path(name.removeprefix(PREFIX)).expanduser()

    def unpacked(root: Path) -> Path:
        return root / stem(path)

    def places(root: Path) -> list[Path]:
        if path.name.endswith(".tar") or not is_archive(path):
            return [path]
        return [unpacked(root)]

    def fetch(root: Path, report: Report) -> Path:
        if not is_archive(path):
            raise MissingDataError(f"{path} is not there")
        report(f"unpacking {path}")
        extract(path, unpacked(root))
        return unpacked(root)

    return Source(
        name=name,
        description="class folders of image files",
        places=places,
        read=lambda place: read(place, name=name),
        fetch=fetch,
        by_hand=lambda root: f"put images into {path}/train/<class>/ and {path}/val/<class>/",
        again=lambda place: f"put the right file there; what is damaged in {place} is named above",
    )
