"""CIFAR-10 and CIFAR-100: 32×32 colour images in 10 and in 100 classes.

Krizhevsky 2009, "Learning Multiple Layers of Features from Tiny Images", https://www.cs.toronto.edu/~kriz/cifar.html

Both are read as published: Python pickles, in a folder or in a tar archive.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from spatialgrad.data.classification import ImageDataset
from spatialgrad.data.errors import CorruptDataError, MissingDataError
from spatialgrad.data.files.archives import extract, is_archive, read_files
from spatialgrad.data.files.download import download
from spatialgrad.data.files.formats import read_pickle
from spatialgrad.data.registry import Progress, Source
from spatialgrad.data.splits import MemorySplit

logger = logging.getLogger(__name__)

URL = "https://www.cs.toronto.edu/~kriz"
ARCHIVE_ENDINGS = (".tar.gz", ".tar.xz", ".tar.bz2", ".tar")
"""The published archive, and as users recompress it."""
PUBLISHED = (50_000, 10_000)


@dataclass(frozen=True, kw_only=True)
class Cifar:
    """One of the two data sets, as published."""

    name: str
    title: str
    num_classes: int
    folder: str
    """In the archive."""
    archive: str
    """Name of the archive without its ending."""
    checksum: str
    train: dict[str, str]
    """The files of the training images, and the md5 of each."""
    test: dict[str, str]
    meta: str
    """The file of the class names."""
    names_key: bytes
    labels_key: bytes
    mean: tuple[float, ...]
    std: tuple[float, ...]


CIFAR10 = Cifar(
    name="cifar10",
    title="CIFAR-10",
    num_classes=10,
    folder="cifar-10-batches-py",
    archive="cifar-10-python",
    checksum="md5:c58f30108f718f92721af3b95e74349a",
    train={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    },
    test={"test_batch": "40351d587109b95175f43aff81a1287e"},
    meta="batches.meta",
    names_key=b"label_names",
    labels_key=b"labels",
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)
CIFAR100 = Cifar(
    name="cifar100",
    title="CIFAR-100",
    num_classes=100,
    folder="cifar-100-python",
    archive="cifar-100-python",
    checksum="md5:eb9058c3a382ffc7106e4002c42a8d85",
    train={"train": "16019d7e3df5f24257cddd939b257f8d"},
    test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    meta="meta",
    names_key=b"fine_label_names",
    labels_key=b"fine_labels",
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)


def read(cifar: Cifar, place: Path) -> ImageDataset[MemorySplit]:
    """Read any of its places; with another number of images than published it is a subset, and described as such."""
    md5 = {**cifar.train, **cifar.test}
    contents = _read_contents(place, {*md5, cifar.meta})
    train, test = (_read_split(cifar, place, contents, files) for files in (cifar.train, cifar.test))
    changed = [name for name in md5 if hashlib.md5(contents[name], usedforsecurity=False).hexdigest() != md5[name]]
    complete = (len(train), len(test)) == PUBLISHED
    if complete and changed:
        logger.warning(
            "%s: the content of %s is as expected, but the md5 is not the published one", place, ", ".join(changed)
        )
    try:
        class_names = [
            name.decode() for name in read_pickle(contents[cifar.meta], f"{place}/{cifar.meta}")[cifar.names_key]
        ]
    except (KeyError, AttributeError) as error:
        raise CorruptDataError(f"{place}/{cifar.meta} does not contain the names of the classes") from error
    return ImageDataset(
        name=cifar.name,
        description=cifar.title if complete else f"{cifar.title}, {_short(len(train))}/{_short(len(test))} subset",
        train=train,
        test=test,
        class_names=tuple(class_names),
        mean=cifar.mean,
        std=cifar.std,
        image_size=32,
    )


def fetch(cifar: Cifar, root: Path, progress: Progress) -> Path:
    """Download and extract the published archive."""
    url = f"{URL}/{cifar.archive}.tar.gz"
    progress(f"downloading {url}")
    archive = download(url, cifar.checksum, root)
    extract(archive, root / cifar.folder, top=cifar.folder)
    archive.unlink()
    return root / cifar.folder


def _read_contents(place: Path, names: set[str]) -> dict[str, bytes]:
    """The content of each of the files, all of which must exist."""
    if is_archive(place):
        contents = read_files(place, names)
    else:
        contents = {name: (place / name).read_bytes() for name in names if (place / name).is_file()}
    if absent := sorted(names - contents.keys()):
        raise MissingDataError(f"{place} has no file {', '.join(absent)}")
    return contents


def _read_split(cifar: Cifar, place: Path, contents: dict[str, bytes], files: Collection[str]) -> MemorySplit:
    """The images and labels of all files of a split."""
    images, labels = [], []
    for name in files:
        batch = read_pickle(contents[name], f"{place}/{name}")
        try:
            images.append(np.asarray(batch[b"data"]).reshape(-1, 3, 32, 32))
            labels.append(np.array(batch[cifar.labels_key], dtype=np.int64).reshape(len(images[-1])))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptDataError(
                f"{place}/{name} has no images of {cifar.title} with their labels ({error})"
            ) from error
    return MemorySplit(torch.from_numpy(np.concatenate(images)), torch.from_numpy(np.concatenate(labels)))


def _short(count: int) -> str:
    return f"{count // 1000}k" if count % 1000 == 0 else f"{count:,}"


def _source(cifar: Cifar) -> Source:
    archive = f"{cifar.archive}.tar.gz"
    return Source(
        name=cifar.name,
        description=f"50,000 + 10,000 colour images of 32×32, {cifar.num_classes} classes",
        places=[cifar.folder, *(f"{cifar.archive}{ending}" for ending in ARCHIVE_ENDINGS)],
        read=partial(read, cifar),
        fetch=partial(fetch, cifar),
        manual=f"put {archive} from {URL}/{archive} into {{root}}, as it is or extracted",
    )


SOURCE10, SOURCE100 = _source(CIFAR10), _source(CIFAR100)
