"""A digest of the data that a run has seen."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np
from torch import Tensor

from spatialgrad.data.batches import BatchDataset
from spatialgrad.data.files.listing import FileList

MAX_BYTES_READ = 1_000_000_000
"""Image files are read up to this size together; of more, names and sizes have to do."""


def fingerprint(dataset: BatchDataset[Any]) -> str:
    """A digest of the training and test images and their labels, as they are now: after any selection.

    Of images in memory it covers the pixels. Of image files it covers the names below their common folder, and the
    content if they have at most 1 GB together, else their sizes. It does not depend on where the files are, on their
    times, on the machine or on the device of the images.

    Returns:
        16 hexadecimal digits.
    """
    digest = hashlib.blake2b(digest_size=8)
    parts: list[Tensor | FileList] = [*dataset.train.content(), *dataset.test.content()]
    sizes = [part.sizes() if isinstance(part, FileList) else np.zeros(0) for part in parts]
    above = _common_folder([part for part in parts if isinstance(part, FileList)])
    whole = sum(int(size.sum()) for size in sizes) <= MAX_BYTES_READ
    for part, size in zip(parts, sizes, strict=True):
        if isinstance(part, Tensor):
            _add_tensor(digest, part)
        else:
            _add_files(digest, part, above, size, whole=whole)
    return digest.hexdigest()


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
