"""Human pose: a heat map for every joint, trained with mean squared error, and scored by PCK or PCKh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from spatialgrad.data.augment import normalize
from spatialgrad.data.batches import Pass
from spatialgrad.data.pose import PoseAugmentation, PoseDataset, mirror_joints
from spatialgrad.data.registry import load_for
from spatialgrad.models.pose_resnet import MAP_STRIDE
from spatialgrad.train.config import DataConfig, TrainConfig
from spatialgrad.train.examples import Gallery, Pictures
from spatialgrad.train.flags import require
from spatialgrad.train.tasks.base import Sums, Task, subset_of, total
from spatialgrad.train.tasks.keypoints import (
    LEGEND,
    count_right,
    decode,
    default_sigma,
    draw_skeleton,
    encode,
    mean_over_joints,
    to_map,
)

DIVISOR = 32
"""The sides of images are multiples of this, the total stride of the backbone."""


class Pose(Task):
    """One person per image."""

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        super().__init__(config, device)
        self.dataset: PoseDataset = load_people(config.data)
        self.size = self.dataset.image_size
        self.skeleton = self.dataset.skeleton
        self.headline = self.skeleton.metric
        self.sigma = config.pose.sigma or default_sigma(self.size // MAP_STRIDE)
        self.augmentation = (
            PoseAugmentation(scale=config.pose.scale, rotation=config.pose.rotation) if config.data.augment else None
        )

    @property
    def input_size(self) -> tuple[int, ...]:
        """Shape of one image."""
        return (3, self.size, self.size)

    @property
    def num_classes(self) -> int:
        """Number of joints, each with a heat map."""
        return self.skeleton.num_joints

    @property
    def class_names(self) -> Sequence[str]:
        """Names of the joints."""
        return self.skeleton.joints

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Sums]:
        """Mean squared error of the heat maps of visible joints."""
        maps = model(batch[0])
        loss = self._error(maps, batch)
        return loss, self._sums(loss, maps.detach(), batch)

    def evaluate(self, model: nn.Module, batch: Any) -> Sums:
        """Mean squared error, and counts of correct joints."""
        maps = self.predict(model, batch[0])
        return self._sums(self._error(maps, batch), maps, batch)

    def predict(self, model: nn.Module, images: Tensor) -> Tensor:
        """The heat maps of images; with `pose.flip_test`, averaged with those of the mirror images."""
        maps: Tensor = model(images)
        if not self.config.pose.flip_test:
            return maps
        mirrored: Tensor = mirror_joints(model(images.flip(3)).flip(3), self.skeleton, dim=1)
        return (maps + mirrored) / 2

    def metrics(self, sums: Sums) -> dict[str, float]:
        """Mean loss, and mean share of correct joints."""
        value = mean_over_joints(sums["right"], sums["scored"], self.skeleton.scored)
        return {"loss": float(sums["loss"]) / int(sums["images"]), self.headline: value}

    def examples(self, model: nn.Module, number: int) -> Gallery:
        """Evenly spaced test images with the true and the predicted skeletons."""
        chosen = torch.linspace(0, self.num_test - 1, min(number, self.num_test)).long()
        images, *truth = self.dataset.read(Pass(split="test", training=False), chosen)
        batch = normalize(images.to(self.device), self.dataset.mean, self.dataset.std)
        shown = []
        for index, (image, joints, visible, length) in enumerate(zip(images, *truth, strict=True)):
            found = decode(self.predict(model, batch[index, None]), MAP_STRIDE).cpu()
            right, scored = count_right(found, joints[None], visible[None], length[None], self.skeleton.threshold)
            pictures = {
                "image": draw_skeleton(image, joints, torch.zeros_like(visible), self.skeleton),
                "truth": draw_skeleton(image, joints, visible, self.skeleton),
                # Without hidden joints, whose true position is unknown.
                "prediction": draw_skeleton(image, found[0], visible, self.skeleton),
            }
            which = list(self.skeleton.scored)
            caption = f"{int(right[which].sum())} of {int(scored[which].sum())} joints correct"
            shown.append(Pictures(caption=caption, images=pictures))
        return Gallery(examples=shown, legend=LEGEND)

    def _error(self, maps: Tensor, batch: Any) -> Tensor:
        """Mean over images, so that images of all processes have equal weight; hidden joints contribute 0."""
        _, joints, visible, _ = batch
        side = maps.shape[-1]
        places = to_map(joints, MAP_STRIDE)
        within = ((places >= -0.5) & (places <= side - 0.5)).all(-1)
        squared = (maps - encode(joints, side, MAP_STRIDE, self.sigma)).square().mean((2, 3))
        error: Tensor = (squared * (visible & within)).mean()
        return error

    def _sums(self, loss: Tensor, maps: Tensor, batch: Any) -> Sums:
        images, joints, visible, lengths = batch
        right, scored = count_right(decode(maps, MAP_STRIDE), joints, visible, lengths, self.skeleton.threshold)
        return {
            "loss": total(loss) * len(images),
            "right": right,
            "scored": scored,
            # Made on the device: a copy from the CPU would wait for it.
            "images": torch.full((), len(images), device=images.device),
        }


def load_people(config: DataConfig) -> PoseDataset:
    """The data set that a config describes."""
    dataset: PoseDataset = load_for("pose", config.name, config.root)
    size = dataset.image_size if config.image_size is None else config.image_size
    valid = isinstance(size, int) and size % DIVISOR == 0
    require(valid, "data.image_size", size, f"must be one multiple of {DIVISOR} for pose")
    return subset_of(replace(dataset, image_size=cast("int", size)), config)
