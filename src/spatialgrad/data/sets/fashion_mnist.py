"""Fashion-MNIST: 28×28 grey images of clothes in ten classes, and the subset shipped with the package.

Xiao, Rasul and Vollgraf 2017, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
Algorithms", https://arxiv.org/abs/1708.07747, MIT licence. `fashion-mnist-mini` is the first 500 training
and 100 test images of each class, in the official order.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from spatialgrad.data.classification import ImageDataset
from spatialgrad.data.errors import CorruptDataError, MissingDataError
from spatialgrad.data.files.download import RemoteFile, download
from spatialgrad.data.files.formats import read_idx
from spatialgrad.data.source import Progress, Source
from spatialgrad.data.splits import MemorySplit

CLASS_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
FILES = {
    "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
}
URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
MINI_FOLDER = Path(__file__).parent / "fashion_mnist_mini"
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")


def read(folder: Path) -> ImageDataset[MemorySplit]:
    """Read all of Fashion-MNIST: 60,000 training and 10,000 test images."""
    return _read(folder, "fashion-mnist", "Fashion-MNIST", 60_000, 10_000)


def read_mini(folder: Path) -> ImageDataset[MemorySplit]:
    """Read the shipped subset: 5,000 training and 1,000 test images."""
    return _read(folder, "fashion-mnist-mini", "Fashion-MNIST, 5k/1k subset", 5_000, 1_000)


def _read(folder: Path, name: str, description: str, num_train: int, num_test: int) -> ImageDataset[MemorySplit]:
    return ImageDataset(
        name=name,
        description=description,
        train=_read_split(folder, "train", num_train),
        test=_read_split(folder, "t10k", num_test),
        class_names=CLASS_NAMES,
        mean=(0.2860,),
        std=(0.3530,),
        image_size=28,
    )


def _read_split(folder: Path, prefix: str, count: int) -> MemorySplit:
    image_file, label_file = _file(folder, f"{prefix}-images-idx3-ubyte"), _file(folder, f"{prefix}-labels-idx1-ubyte")
    images, labels = read_idx(image_file, ndim=3), read_idx(label_file, ndim=1)
    # The counts reveal files of one split that were swapped with those of the other.
    if images.shape != (count, 28, 28):
        raise CorruptDataError(f"{image_file} contains images of shape {images.shape}, not {(count, 28, 28)}")
    if labels.shape != (count,) or labels.max() >= len(CLASS_NAMES):
        raise CorruptDataError(f"{label_file} has {len(labels):,} labels up to {labels.max()}, not {count:,} up to 9")
    return MemorySplit(torch.from_numpy(images)[:, None], torch.from_numpy(labels.astype(np.int64)))


def _file(folder: Path, name: str) -> Path:
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise MissingDataError(f"{folder} has no file {name}.gz")


def fetch(root: Path, progress: Progress) -> Path:
    """Download the four files into a new folder."""
    folder, partial = root / "fashion-mnist", root / "fashion-mnist.part"
    for name, checksum in FILES.items():
        progress(f"downloading {URL}/{name}")
        download(RemoteFile(url=f"{URL}/{name}", checksum=checksum), partial)
    # Renamed at the end, so that an incomplete folder never has the final name.
    partial.rename(folder)
    return folder


SOURCE = Source(
    name="fashion-mnist",
    description="60,000 + 10,000 grey images of 28×28, 10 classes of clothes",
    places=lambda root: [root / "fashion-mnist", root / "FashionMNIST" / "raw", DEBIAN_FOLDER],
    read=read,
    fetch=fetch,
    manual=lambda root: (
        f"put {', '.join(FILES)} from {URL} into {root / 'fashion-mnist'}; "
        f"on Debian: apt-get install dataset-fashion-mnist"
    ),
    repair=lambda place: (
        "apt-get install --reinstall dataset-fashion-mnist"
        if place == DEBIAN_FOLDER
        else f"remove {place} and run `spatialgrad data get fashion-mnist`"
    ),
)
MINI = Source(
    name="fashion-mnist-mini",
    description="5,000 + 1,000 images of fashion-mnist, shipped with the package",
    places=lambda root: [MINI_FOLDER],
    read=read_mini,
    fetch=lambda root, progress: MINI_FOLDER,
    manual=lambda root: "reinstall spatialgrad",
    repair=lambda place: "reinstall spatialgrad",
)
