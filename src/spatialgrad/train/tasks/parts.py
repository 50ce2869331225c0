"""Parts of a data set: fewer images, or, where images have no class of their own, some held out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from spatialgrad.data.classification import ImageDataset
from spatialgrad.data.pose import PoseDataset
from spatialgrad.data.segmentation import SegmentationDataset
from spatialgrad.data.splits import random_indices
from spatialgrad.train.errors import ConfigError

if TYPE_CHECKING:
    from spatialgrad.train.config.groups import DataConfig

D = TypeVar("D", SegmentationDataset, PoseDataset, ImageDataset[Any])


def part_of(dataset: D, config: DataConfig) -> D:
    """What `validation`, `limit` and `test_limit` leave of a data set, whose description says so.

    Raises:
        ConfigError: If it does not have so many images.
    """
    if config.validation:
        count, number = len(dataset.train), round(config.validation * len(dataset.train))
        if not 0 < number < count:
            raise ConfigError(
                f"invalid data.validation: {config.validation} of the {count} training images of {dataset.name} are "
                f"{number}; some must be held out, and some must stay"
            )
        stay, held_out = random_indices(count, number, seed=config.split_seed)
        told = f"{config.validation:.0%} of the training images held out (seed {config.split_seed})"
        dataset = replace(
            dataset,
            description=f"{dataset.description}, {told}",
            train=dataset.train.select(stay),
            test=dataset.train.select(held_out),
        )
    return limited(dataset, config, lambda images, limit: random_indices(len(images), limit, seed=config.split_seed)[1])


def limited(dataset: D, config: DataConfig, choose: Callable[[Any, int], Tensor]) -> D:
    """What `limit` and `test_limit` leave of a data set, whose description says so.

    Args:
        dataset: With the splits `train` and `test`.
        config: Says how many images are wanted of each.
        choose: Called with a split and a number of images: their indices.

    Raises:
        ConfigError: If it does not have so many images.
    """
    for split, field, limit in (("train", "limit", config.limit), ("test", "test_limit", config.test_limit)):
        images: Any = getattr(dataset, split)
        if limit is not None and limit > len(images):
            raise ConfigError(f"invalid data.{field}: {dataset.name} has {len(images)} {split} images, not {limit}")
        if limit is not None and limit < len(images):
            description = f"{dataset.description}, {limit:,} {split} images"
            dataset = replace(dataset, description=description, **{split: images.select(choose(images, limit))})
    return dataset
