"""Parts of a data set whose images have no class of their own: held out, or fewer of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from spatialgrad.data.people import PoseDataset
from spatialgrad.data.segmentation import SegmentationDataset
from spatialgrad.data.splits import random_indices
from spatialgrad.train.errors import ConfigError

if TYPE_CHECKING:
    from spatialgrad.train.config import DataConfig

D = TypeVar("D", SegmentationDataset, PoseDataset)


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
    for split, field, limit in (("train", "limit", config.limit), ("test", "test_limit", config.test_limit)):
        images: Any = getattr(dataset, split)
        if limit is not None and limit > len(images):
            raise ConfigError(f"invalid data.{field}: {dataset.name} has {len(images)} {split} images, not {limit}")
        if limit is not None and limit < len(images):
            _, chosen = random_indices(len(images), limit, seed=config.split_seed)
            description = f"{dataset.description}, {limit:,} {split} images"
            dataset = replace(dataset, description=description, **{split: images.select(chosen)})
    return dataset
