"""Subsets of data sets: a limited number of images, or some held out for validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor

from spatialgrad.data.classification import ImageDataset
from spatialgrad.data.pose import PoseDataset
from spatialgrad.data.segmentation import SegmentationDataset
from spatialgrad.data.splits import random_indices
from spatialgrad.train.config.groups import DataConfig
from spatialgrad.train.config.validation import flag
from spatialgrad.train.errors import ConfigError

D = TypeVar("D", SegmentationDataset, PoseDataset, ImageDataset[Any])


def part_of(dataset: D, config: DataConfig) -> D:
    """Apply `validation`, `limit` and `test_limit` to a data set, and mention them in its description.

    Raises:
        ConfigError: If the data set has too few images.
    """
    if config.validation:
        count, number = len(dataset.train), round(config.validation * len(dataset.train))
        if not 0 < number < count:
            raise ConfigError(
                f"--data.validation {config.validation} holds out {number} of the {count} training images of "
                f"{dataset.name}; it must leave some of them, but not all"
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
    """Apply `limit` and `test_limit` to a data set, and mention them in its description.

    Args:
        dataset: With the splits `train` and `test`.
        config: Number of images of each split.
        choose: Called with a split and a number of images; returns their indices.

    Raises:
        ConfigError: If the data set has too few images.
    """
    for split, field, limit in (("train", "limit", config.limit), ("test", "test_limit", config.test_limit)):
        images: Any = getattr(dataset, split)
        if limit is not None and limit > len(images):
            raise ConfigError(f"{flag(f'data.{field}')} {limit}: {dataset.name} has only {len(images)} {split} images")
        if limit is not None and limit < len(images):
            description = f"{dataset.description}, {limit:,} {split} images"
            dataset = replace(dataset, description=description, **{split: images.select(choose(images, limit))})
    return dataset
