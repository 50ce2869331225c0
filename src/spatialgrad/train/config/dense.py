"""The groups of a config that segmentation and pose need."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spatialgrad.train.config.validation import at_least, require


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentationConfig:
    """How segmentation is learned; the defaults are those of PSPNet on Cityscapes."""

    auxiliary: float = 0.4
    """Weight of the loss of the auxiliary head."""
    scale: tuple[float, float] = (0.5, 2.0)
    """Smallest and largest factor by which training images are resized before they are cropped."""
    rotation: float = 10.0
    """Degrees, in either direction, by which half of the training images are turned."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", tuple(self.scale))
        at_least(0, self, "segmentation", "auxiliary")
        low, high = self.scale
        require(0 < low <= high, "segmentation.scale", self.scale, "must be two positive numbers, the smaller first")
        require(0 <= self.rotation <= 180, "segmentation.rotation", self.rotation, "must be from 0 to 180 degrees")


@dataclass(frozen=True, kw_only=True, slots=True)
class PoseConfig:
    """How human pose is learned; the defaults are those of the pose ResNet on MPII."""

    sigma: float | None = None
    """Standard deviation of the Gaussians, in pixels of a heat map; by default 2 for maps of 64 × 64, in proportion for
    others, and at least 1."""
    scale: float = 0.25
    """Standard deviation of the factor on the squares that training people are cut out by, which is within 1 ± this."""
    rotation: float = 30.0
    """Standard deviation, in degrees, of the angle by which 60 % of the training people are turned."""
    flip_test: bool = True
    """Test on the mean of the heat maps of an image and of its mirror image."""

    def __post_init__(self) -> None:
        right = self.sigma is None or (math.isfinite(self.sigma) and self.sigma > 0)
        require(right, "pose.sigma", self.sigma, "must be positive")
        require(0 <= self.scale < 1, "pose.scale", self.scale, "must be from 0 to below 1")
        require(0 <= self.rotation <= 90, "pose.rotation", self.rotation, "must be from 0 to 90 degrees")
