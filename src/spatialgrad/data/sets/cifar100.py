"""CIFAR-100: 32×32 colour images in a hundred classes; see `cifar.py`."""

from __future__ import annotations

from pathlib import Path

from spatialgrad.data.classification import ImageDataset, MemorySplit
from spatialgrad.data.files.download import RemoteFile
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

FOLDER = "cifar-100-python"
REMOTE = RemoteFile(
    url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    checksum="md5:eb9058c3a382ffc7106e4002c42a8d85",
)
TRAIN = BatchFile("train", b"training batch 1 of 1", 50_000, "16019d7e3df5f24257cddd939b257f8d")
TEST = BatchFile("test", b"testing batch 1 of 1", 10_000, "f0ef6b0ae62326f3e7ffdfab6717acfc")


def places(root: Path) -> list[Path]:
    """The unpacked folder, or the archive in one of the usual compressions."""
    return [root / FOLDER, *(root / f"{FOLDER}{ending}" for ending in ARCHIVE_ENDINGS)]


def read(place: Path) -> ImageDataset[MemorySplit]:
    """Read the published layout; fewer images than published make a subset, which its description says."""
    contents = read_contents(place, [TRAIN.name, TEST.name, "meta"])
    names = read_class_names(place, contents["meta"], "meta", key=b"fine_label_names", count=100)
    train, test = (
        read_split(place, contents, [file], label_key=b"fine_labels", num_classes=100) for file in (TRAIN, TEST)
    )
    return ImageDataset(
        name="cifar100",
        description=describe("CIFAR-100", train, test),
        train=train,
        test=test,
        class_names=names,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        image_size=32,
    )


def fetch(root: Path, report: Report) -> Path:
    """Download and unpack the published archive."""
    return fetch_published(REMOTE, root, FOLDER, report)


SOURCE = Source(
    name="cifar100",
    description="50,000 + 10,000 colour images of 32×32, 100 classes",
    places=places,
    read=read,
    fetch=fetch,
    by_hand=lambda root: f"put {REMOTE.name} from {REMOTE.url} into {root}, as it is or unpacked",
)
