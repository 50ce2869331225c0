"""The groups of a config that segmentation and pose need."""

from __future__ import annotations

from dataclasses import dataclass

from spatialgrad.train.config_checks import at_least, require


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
