"""A digest of the data that a run has seen."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from spatialgrad.data.files.listing import FileList
from spatialgrad.data.pose import People
from spatialgrad.data.segmentation import MaskFiles
from spatialgrad.data.splits import FileSplit, MemorySplit

MAX_BYTES_READ = 1_000_000_000
"""Image files are read up to this size together; of more, names and sizes have to do."""


class Splits(Protocol):
    """A data set of any kind."""

    @property
    def train(self) -> Any:
        """The training images."""

    @property
    def test(self) -> Any:
        """The test images."""


def fingerprint(dataset: Splits) -> str:
    """A digest of the training and test images and their labels, as they are now: after any selection.

    Of images in memory it covers the pixels. Of image files it covers the names below their common folder, and the
    content if they have at most 1 GB together, else their sizes. It does not depend on where the files are, on their
    times, on the machine or on the device of the images.

    Returns:
        16 hexadecimal digits.
    """
    digest = hashlib.blake2b(digest_size=8)
    parts = [list(_parts(split)) for split in (dataset.train, dataset.test)]
    lists = [part for each in parts for part in each if isinstance(part, FileList)]
    sizes = [files.sizes() for files in lists]
    above = _common_folder(lists)
    whole = sum(int(size.sum()) for size in sizes) <= MAX_BYTES_READ
    remaining = iter(sizes)
    for split in parts:
        for part in split:
            if isinstance(part, Tensor):
                _add_tensor(digest, part)
            else:
                _add_files(digest, part, above, next(remaining), whole=whole)
    return digest.hexdigest()


def _parts(split: MemorySplit | FileSplit[Any] | People) -> Iterator[Tensor | FileList]:
    """What a split consists of; images that were decoded are represented by their files, as decoders differ."""
    if isinstance(split, People):
        yield split.images
        # Computed with square roots, whose last bit may differ from machine to machine.
        yield from (split.joints, split.visible, split.boxes.float(), split.lengths.float())
    elif isinstance(split, MemorySplit):
        yield split.images if split.files is None else split.files
        yield split.labels
    else:
        yield split.files
        if isinstance(split.labels, MaskFiles):
            yield split.labels.files
            yield torch.from_numpy(split.labels.tables)
        else:
            yield split.labels


def _add_tensor(digest: hashlib.blake2b, tensor: Tensor) -> None:
    array = np.ascontiguousarray(tensor.cpu().numpy())
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    digest.update(f"{array.dtype.str}{array.shape}".encode())
    digest.update(array.reshape(-1).view(np.uint8).data)


def _add_files(digest: hashlib.blake2b, files: FileList, above: int, sizes: np.ndarray, *, whole: bool) -> None:
    for index, (name, size) in enumerate(zip(files.names.tolist(), sizes.tolist(), strict=True)):
        digest.update(b"%s\0%d\0" % (name[above:], size))
        if whole:
            digest.update(files.read(index))


def _common_folder(lists: list[FileList]) -> int:
    """Length of the folder that all names begin with: an archive may have one more than the folder it was made of."""
    folders = {os.path.dirname(name) for files in lists for name in files.names.tolist()}
    common = os.path.commonpath(folders) if folders else b""
    return len(common) + 1 if common else 0
