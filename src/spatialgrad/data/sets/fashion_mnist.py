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
from spatialgrad.data.files.download import download
from spatialgrad.data.files.formats import read_idx
from spatialgrad.data.registry import Progress, Source
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


def read(folder: Path, *, mini: bool = False) -> ImageDataset[MemorySplit]:
    """Read all of Fashion-MNIST, 60,000 training and 10,000 test images, or the shipped subset."""
    return ImageDataset(
        name="fashion-mnist-mini" if mini else "fashion-mnist",
        description="Fashion-MNIST, 5k/1k subset" if mini else "Fashion-MNIST",
        train=_read_split(folder, "train", 5_000 if mini else 60_000),
        test=_read_split(folder, "t10k", 1_000 if mini else 10_000),
        class_names=CLASS_NAMES,
        mean=(0.2860,),
        std=(0.3530,),
        image_size=28,
    )


def _read_split(folder: Path, prefix: str, count: int) -> MemorySplit:
    image_file, label_file = _file(folder, f"{prefix}-images-idx3-ubyte"), _file(folder, f"{prefix}-labels-idx1-ubyte")
    images, labels = read_idx(image_file, ndim=3), read_idx(label_file, ndim=1)
    # The counts reveal files of one split that were swapped with those of the other.
    if images.shape != (count, 28, 28) or labels.shape != (count,):
        raise CorruptDataError(
            f"{image_file} and {label_file.name} contain images of shape {images.shape} and {len(labels):,} labels, "
            f"not {count:,} of 28×28"
        )
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
        download(f"{URL}/{name}", checksum, partial)
    # Renamed at the end, so that an incomplete folder never has the final name.
    partial.rename(folder)
    return folder


SOURCE = Source(
    name="fashion-mnist",
    description="60,000 + 10,000 grey images of 28×28, 10 classes of clothes",
    # Ours, torchvision's, and that of Debian's package.
    places=["fashion-mnist", "FashionMNIST/raw", "/usr/share/datasets/fashion-mnist"],
    read=read,
    fetch=fetch,
    manual=(
        f"put {', '.join(FILES)} from {URL} into {{root}}/fashion-mnist; "
        "on Debian: apt-get install dataset-fashion-mnist"
    ),
)
MINI = Source(
    name="fashion-mnist-mini",
    description="5,000 + 1,000 images of fashion-mnist, shipped with the package",
    places=[Path(__file__).parent / "fashion_mnist_mini"],
    read=lambda folder: read(folder, mini=True),
    manual="reinstall spatialgrad",
)
