"""Fashion-MNIST: 28×28 grey images of clothes in ten classes, and the slice of it that is shipped.

Xiao, Rasul and Vollgraf 2017, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
Algorithms", https://arxiv.org/abs/1708.07747, MIT licence. `fashion-mnist-mini` is the first 500 training
and 100 test images of each class, in the official order.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from spatialgrad.data.dataset import ImageDataset, MemorySplit
from spatialgrad.data.errors import CorruptDataError, MissingDataError
from spatialgrad.data.idx import read_idx

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
MINI_FOLDER = Path(__file__).parent / "fashion_mnist_mini"
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")


def load_mini() -> ImageDataset[MemorySplit]:
    """The shipped slice: 5,000 training and 1,000 test images."""
    return _load(
        MINI_FOLDER,
        name="fashion-mnist-mini",
        description="Fashion-MNIST, 5k/1k slice",
        counts=(5_000, 1_000),
        again="reinstall spatialgrad",
    )


def _load(
    folder: Path, *, name: str, description: str, counts: tuple[int, int], again: str
) -> ImageDataset[MemorySplit]:
    train, test = (
        _read_split(folder, prefix, count, again) for prefix, count in zip(("train", "t10k"), counts, strict=True)
    )
    return ImageDataset(
        name=name,
        description=description,
        train=train,
        test=test,
        class_names=CLASS_NAMES,
        mean=(0.2860,),
        std=(0.3530,),
        image_size=28,
    )


def _read_split(folder: Path, prefix: str, count: int, again: str) -> MemorySplit:
    try:
        images = read_idx(_file(folder, f"{prefix}-images-idx3-ubyte"), ndim=3)
        labels = read_idx(_file(folder, f"{prefix}-labels-idx1-ubyte"), ndim=1)
        if images.shape != (count, 28, 28) or labels.shape != (count,) or labels.max() >= len(CLASS_NAMES):
            raise CorruptDataError(
                f"{folder}/{prefix}-* hold images of shape {images.shape} and labels of shape {labels.shape} "
                f"up to {labels.max()}, where {count:,} images of 28×28 and labels up to 9 belong"
            )
    except CorruptDataError as error:
        raise CorruptDataError(f"{error}. To get it again: {again}") from error
    return MemorySplit(torch.from_numpy(images)[:, None], torch.from_numpy(labels.astype(np.int64)))


def _file(folder: Path, name: str) -> Path:
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise MissingDataError(f"{folder} has no {name}.gz")
