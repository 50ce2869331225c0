"""The layout that CIFAR-10 and CIFAR-100 are published in: Python pickles, in a folder or in a tar archive.

Krizhevsky 2009, "Learning Multiple Layers of Features from Tiny Images",
https://www.cs.toronto.edu/~kriz/cifar.html
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spatialgrad.data.classification import MemorySplit
from spatialgrad.data.errors import CorruptDataError, MissingDataError
from spatialgrad.data.files.archives import extract, is_archive, read_files
from spatialgrad.data.files.download import RemoteFile, download
from spatialgrad.data.files.pickles import read_pickle
from spatialgrad.data.source import Report

ARCHIVE_ENDINGS = (".tar.gz", ".tar.xz", ".tar.bz2", ".tar")


@dataclass(frozen=True)
class BatchFile:
    """A published file of images and labels.

    Attributes:
        name: Of the file.
        title: How its content calls itself: a file swapped with another calls itself otherwise.
        count: Images in it. One with fewer is a subset, for which no checksum was published.
        md5: Of the whole file.
    """

    name: str
    title: bytes
    count: int
    md5: str


def read_contents(place: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The content of each file of a folder or an archive, all of which must be there."""
    if is_archive(place):
        contents = read_files(place, set(names))
    elif place.is_dir():
        contents = {name: (place / name).read_bytes() for name in names if (place / name).is_file()}
    else:
        raise CorruptDataError(f"{place} is neither a folder nor a tar archive")
    if absent := [name for name in names if name not in contents]:
        raise MissingDataError(f"{place} has no file {', '.join(absent)}")
    return contents


def read_split(
    place: Path, contents: dict[str, bytes], files: Sequence[BatchFile], *, label_key: bytes, num_classes: int
) -> MemorySplit:
    """Read the pickled batches of a split, check each, and put them together."""
    batches = [_read_batch(f"{place}/{file.name}", contents[file.name], file, label_key, num_classes) for file in files]
    images, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    return MemorySplit(torch.from_numpy(images).view(-1, 3, 32, 32), torch.from_numpy(labels))


def _read_batch(
    name: str, content: bytes, file: BatchFile, label_key: bytes, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    batch = read_pickle(content, name)
    title, images, labels = batch.get(b"batch_label"), batch.get(b"data"), _integers(batch.get(label_key))
    if title != file.title:
        raise CorruptDataError(f"{name} calls itself {title!r}, not {file.title!r}: it is another file")
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (3072,):
        raise CorruptDataError(f"{name} has no images of 3 × 32 × 32 bytes")
    if labels is None or len(labels) != len(images) or not len(labels):
        raise CorruptDataError(f"{name} does not have a label for each of its {len(images):,} images")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise CorruptDataError(f"{name} has labels {labels.min()} to {labels.max()}, not 0 to {num_classes - 1}")
    if len(images) >= file.count and hashlib.md5(content, usedforsecurity=False).hexdigest() != file.md5:
        raise CorruptDataError(f"{name} has {len(images):,} images, as published, but not the published md5")
    return images, labels


def _integers(values: Any) -> np.ndarray | None:
    if not isinstance(values, list) or not all(type(value) is int and abs(value) < 1 << 31 for value in values):
        return None
    return np.array(values, dtype=np.int64)


def read_class_names(place: Path, content: bytes, file: str, *, key: bytes, count: int) -> tuple[str, ...]:
    """The class names from a `meta` file."""
    names = read_pickle(content, f"{place}/{file}").get(key)
    if not isinstance(names, list) or len(names) != count or not all(isinstance(n, bytes) for n in names):
        raise CorruptDataError(f"{place}/{file} does not have the names of {count} classes")
    return tuple(name.decode("ascii", "replace") for name in names)


def describe(title: str, train: MemorySplit, test: MemorySplit) -> str:
    """The title, with the sizes if it is not the whole of CIFAR."""
    if (len(train), len(test)) == (50_000, 10_000):
        return title

    def short(count: int) -> str:
        return f"{count // 1000}k" if count % 1000 == 0 else f"{count:,}"

    return f"{title}, {short(len(train))}/{short(len(test))} subset"


def fetch_published(remote: RemoteFile, root: Path, folder: str, report: Report) -> Path:
    """Download the published archive and unpack its folder; the archive is not needed any more then."""
    archive = download(remote, root, report=report)
    extract(archive, root / folder, top=folder)
    archive.unlink()
    return root / folder
