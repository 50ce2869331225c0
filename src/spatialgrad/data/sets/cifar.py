"""CIFAR-10 and CIFAR-100: 32×32 colour images in 10 and in 100 classes.

Krizhevsky 2009, "Learning Multiple Layers of Features from Tiny Images", https://www.cs.toronto.edu/~kriz/cifar.html

Both are read as published: Python pickles, in a folder or in a tar archive.
"""

from __future__ import annotations

import hashlib
import logging
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from spatialgrad.data.classification import ImageDataset
from spatialgrad.data.errors import CorruptDataError, MissingDataError
from spatialgrad.data.files.archives import extract, is_archive, read_files
from spatialgrad.data.files.download import RemoteFile, download
from spatialgrad.data.files.formats import read_pickle
from spatialgrad.data.source import Progress, Source
from spatialgrad.data.splits import MemorySplit

logger = logging.getLogger(__name__)

ARCHIVE_ENDINGS = (".tar.gz", ".tar.xz", ".tar.bz2", ".tar")


@dataclass(frozen=True)
class BatchFile:
    """A published file of images and labels.

    Attributes:
        name: The name of the file.
        title: The title in its content, which tells it from a file that was swapped with it.
        count: Images in it. A file with another number is a subset, for which no checksum was published.
        md5: Checksum of the whole file.
    """

    name: str
    title: bytes
    count: int
    md5: str


@dataclass(frozen=True, kw_only=True)
class Cifar:
    """One of the two data sets, as published."""

    name: str
    title: str
    folder: str
    remote: RemoteFile
    train: tuple[BatchFile, ...]
    test: BatchFile
    meta: str
    """The file of the class names."""
    names_key: bytes
    labels_key: bytes
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def places(self, root: Path) -> list[Path]:
        """The extracted folder, or the archive in any usual compression."""
        stem = self.remote.name.removesuffix(".tar.gz")
        return [root / self.folder, *(root / f"{stem}{ending}" for ending in ARCHIVE_ENDINGS)]


_TRAIN_MD5 = (
    "c99cafc152244af753f735de768cd75f",
    "d4bba439e000b95fd0a9bffe97cbabec",
    "54ebc095f3ab1f0389bbae665268c751",
    "634d18415352ddfa80567beed471001a",
    "482c414d41f54cd18b22e5b47cb7c3cb",
)
CIFAR10 = Cifar(
    name="cifar10",
    title="CIFAR-10",
    folder="cifar-10-batches-py",
    remote=RemoteFile(
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        checksum="md5:c58f30108f718f92721af3b95e74349a",
    ),
    train=tuple(
        BatchFile(f"data_batch_{number}", b"training batch %d of 5" % number, 10_000, md5)
        for number, md5 in enumerate(_TRAIN_MD5, start=1)
    ),
    test=BatchFile("test_batch", b"testing batch 1 of 1", 10_000, "40351d587109b95175f43aff81a1287e"),
    meta="batches.meta",
    names_key=b"label_names",
    labels_key=b"labels",
    num_classes=10,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)
CIFAR100 = Cifar(
    name="cifar100",
    title="CIFAR-100",
    folder="cifar-100-python",
    remote=RemoteFile(
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        checksum="md5:eb9058c3a382ffc7106e4002c42a8d85",
    ),
    train=(BatchFile("train", b"training batch 1 of 1", 50_000, "16019d7e3df5f24257cddd939b257f8d"),),
    test=BatchFile("test", b"testing batch 1 of 1", 10_000, "f0ef6b0ae62326f3e7ffdfab6717acfc"),
    meta="meta",
    names_key=b"fine_label_names",
    labels_key=b"fine_labels",
    num_classes=100,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)


def read(cifar: Cifar, place: Path) -> ImageDataset[MemorySplit]:
    """Read any of its places; with another number of images than published it is a subset, and described as such."""
    contents = _read_contents(place, [*(file.name for file in cifar.train), cifar.test.name, cifar.meta])
    names = _read_class_names(cifar, f"{place}/{cifar.meta}", contents[cifar.meta])
    train, test = (_read_split(cifar, place, contents, files) for files in (cifar.train, [cifar.test]))
    description = _describe(cifar.title, train, test)
    changed = [file.name for file in (*cifar.train, cifar.test) if _md5(contents[file.name]) != file.md5]
    if changed and description == cifar.title:
        logger.warning(
            "%s: the content of %s is as expected, but the md5 is not the published one", place, ", ".join(changed)
        )
    return ImageDataset(
        name=cifar.name,
        description=description,
        train=train,
        test=test,
        class_names=names,
        mean=cifar.mean,
        std=cifar.std,
        image_size=32,
    )


def fetch(cifar: Cifar, root: Path, progress: Progress) -> Path:
    """Download and extract the published archive."""
    progress(f"downloading {cifar.remote.url}")
    archive = download(cifar.remote, root)
    extract(archive, root / cifar.folder, top=cifar.folder)
    archive.unlink()
    return root / cifar.folder


def _read_contents(place: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The content of each of the files, all of which must exist."""
    if is_archive(place):
        contents = read_files(place, set(names))
    elif place.is_dir():
        contents = {name: (place / name).read_bytes() for name in names if (place / name).is_file()}
    else:
        raise CorruptDataError(f"{place} is neither a folder nor a tar archive")
    if absent := [name for name in names if name not in contents]:
        raise MissingDataError(f"{place} has no file {', '.join(absent)}")
    return contents


def _read_class_names(cifar: Cifar, name: str, content: bytes) -> tuple[str, ...]:
    names = read_pickle(content, name).get(cifar.names_key)
    if not isinstance(names, list) or len(names) != cifar.num_classes or not all(isinstance(n, bytes) for n in names):
        raise CorruptDataError(f"{name} does not contain the names of {cifar.num_classes} classes")
    return tuple(name.decode("ascii", "replace") for name in names)


def _read_split(cifar: Cifar, place: Path, contents: dict[str, bytes], files: Sequence[BatchFile]) -> MemorySplit:
    """Read the pickled batches of a split, check each, and concatenate them."""
    batches = [_read_batch(cifar, f"{place}/{file.name}", contents[file.name], file) for file in files]
    images, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    return MemorySplit(torch.from_numpy(images).view(-1, 3, 32, 32), torch.from_numpy(labels))


def _read_batch(cifar: Cifar, name: str, content: bytes, file: BatchFile) -> tuple[np.ndarray, np.ndarray]:
    batch = read_pickle(content, name)
    title, images, labels = batch.get(b"batch_label"), batch.get(b"data"), batch.get(cifar.labels_key)
    if title != file.title:
        raise CorruptDataError(f"{name} is a different file: its title is {reprlib.repr(title)}, not {file.title!r}")
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (3072,):
        raise CorruptDataError(f"{name} contains no images of 3 × 32 × 32 bytes")
    if not isinstance(labels, list) or len(labels) != len(images) or not labels:
        raise CorruptDataError(f"{name} does not have a label for each of its {len(images):,} images")
    if not all(type(label) is int and 0 <= label < cifar.num_classes for label in labels):
        raise CorruptDataError(f"{name} has labels that are not 0 to {cifar.num_classes - 1}")
    return images, np.array(labels, dtype=np.int64)


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _describe(title: str, train: MemorySplit, test: MemorySplit) -> str:
    if (len(train), len(test)) == (50_000, 10_000):
        return title

    def short(count: int) -> str:
        return f"{count // 1000}k" if count % 1000 == 0 else f"{count:,}"

    return f"{title}, {short(len(train))}/{short(len(test))} subset"


def _source(cifar: Cifar) -> Source:
    return Source(
        name=cifar.name,
        description=f"50,000 + 10,000 colour images of 32×32, {cifar.num_classes} classes",
        places=cifar.places,
        read=lambda place: read(cifar, place),
        fetch=lambda root, progress: fetch(cifar, root, progress),
        manual=lambda root: f"put {cifar.remote.name} from {cifar.remote.url} into {root}, as it is or extracted",
    )


SOURCE10, SOURCE100 = _source(CIFAR10), _source(CIFAR100)
