"""The names of methods and tasks, and the groups of a config that only some of them use."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from tyro.conf import arg

from spatialgrad.reparam.dyrep.config import DyRepConfig
from spatialgrad.sgs.apply_mode import Apply
from spatialgrad.train.config.validation import as_config_error, at_least, check_name, flag, require

Control = Literal["none", "shuffled", "neighbours-shuffled", "inverse", "shared"]
METHOD_NAMES = [
    *("baseline", "sgs", "sgs-autocorrelation", "sgs-static", "acb", "repvgg", "dbb", "dyrep"),
    *("repopt-search", "repopt", "lemma", "lemma-unscaled"),
]
"""The keys of `spatialgrad.train.METHODS`."""
STARTS_FROM_SCALES = ("repopt", "baseline", "sgs")
"""The methods that can start from the scales of a search."""
TASK_NAMES = ["classification", "segmentation", "pose"]
"""The keys of `spatialgrad.train.TASKS`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodConfig:
    """Training method."""

    name: Annotated[str, arg(name="method", prefix_name=False, metavar=f"{{{','.join(METHOD_NAMES)}}}")] = "sgs"
    """baseline: plain training.
    sgs, sgs-autocorrelation, sgs-static: scaled gradients (see scaling).
    acb, repvgg, dbb: branches that are merged at the end.
    dyrep: branches that grow during training (see dyrep).
    repopt-search, repopt: RepOptimizer's search for scales, and plain training with what it found (see repopt).
    lemma: a scaled network beside a branched one, to compare their kernels; lemma-unscaled: without scaling."""

    def __post_init__(self) -> None:
        check_name("method", self.name, METHOD_NAMES)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingConfig:
    """Gradient scaling, for the methods sgs, sgs-autocorrelation and sgs-static."""

    k: float = 5.0
    """Larger k flattens G; k = 1 uses S as it is."""
    warmup: int = 1
    """Epochs before the first update of the scalings."""
    every: int = 5
    """Epochs between two updates."""
    batches: int = 2
    """Number of training batches that an update measures."""
    live: bool = False
    """Measure the training's own forward passes instead of further ones: the ranges of as many steps as there are
    batches, and then the counts of as many again."""
    apply: Apply = "auto"
    """gradient: scale the gradient before the optimizer uses it.
    update: scale the optimizer's update (the paper's Adagrad*).
    auto: gradient if the optimizer is linear in it, update otherwise."""
    bins: int | None = None
    """Number of histogram bins; by default Sturges' rule."""
    drop_near: bool = False
    """Ignore pairs of pixels with nearly equal values, as the paper does on ImageNet."""
    alpha: float = 1.25
    """sgs-static: ratio of the centre to the edges of a 3×3 kernel."""
    beta: float = 1.7
    """sgs-static: ratio of the centre to the corners of a 3×3 kernel."""
    control: Control = "none"
    """For experiments: replace each measured G.
    shuffled: the same factors at other positions; neighbours-shuffled: all but the centre.
    inverse: 1/G. shared: the mean of all layers."""

    def __post_init__(self) -> None:
        at_least(0, self, "scaling", "warmup")
        at_least(1, self, "scaling", "every", "batches")
        at_least(2, self, "scaling", "bins")
        check_name(flag("scaling.apply"), self.apply, get_args(Apply))
        check_name(flag("scaling.control"), self.control, get_args(Control))
        require(
            self.control == "none" or not self.live, "scaling.control", self.control, "must be none with --scaling.live"
        )
        for name in ("k", "alpha", "beta"):
            value = getattr(self, name)
            require(math.isfinite(value) and value > 0, f"scaling.{name}", value, "must be positive")


@dataclass(frozen=True, kw_only=True)
class DyRepGroup(DyRepConfig):
    """Growing and cutting branches, for the method dyrep; the defaults are those of its paper for CIFAR."""

    batches: int = 20
    """Number of training batches that measure the statistics of new branches."""
    # Not an option of its own: `with_seed` takes the seed of the training.
    seed: ClassVar[int] = 0  # type: ignore[misc]

    def __post_init__(self) -> None:
        at_least(1, self, "dyrep", "interval", "max_depth", "batches")
        with as_config_error("--dyrep: "):
            DyRepConfig.__post_init__(self)

    def with_seed(self, seed: int) -> DyRepConfig:
        """The settings of the controller that grows and cuts."""
        values = {each.name: getattr(self, each.name) for each in fields(DyRepConfig)}
        return DyRepConfig(**{**values, "seed": seed})


@dataclass(frozen=True, kw_only=True, slots=True)
class RepOptGroup:
    """RepOptimizer, for the methods repopt-search and repopt."""

    scales: Path | None = None
    """Folder of a run of repopt-search, whose scales are used. repopt needs it; baseline and sgs only start from its
    initial weights."""
    initial: float = 1.0
    """repopt-search: initial scales of the k×k and the 1×1 branches."""

    def __post_init__(self) -> None:
        valid = math.isfinite(self.initial) and self.initial > 0
        require(valid, "repopt.initial", self.initial, "must be positive")


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentationConfig:
    """Segmentation; the defaults are those of PSPNet on Cityscapes."""

    auxiliary: float = 0.4
    """Weight of the auxiliary head's loss."""
    scale: tuple[float, float] = (0.5, 2.0)
    """Smallest and largest factor by which training images are resized before cropping."""
    rotation: float = 10.0
    """Largest rotation of training images in degrees, in either direction; half of the images are rotated."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", tuple(self.scale))
        at_least(0, self, "segmentation", "auxiliary")
        low, high = self.scale
        require(0 < low <= high, "segmentation.scale", self.scale, "must be two positive numbers, the smaller first")
        require(0 <= self.rotation <= 180, "segmentation.rotation", self.rotation, "must be from 0 to 180 degrees")


@dataclass(frozen=True, kw_only=True, slots=True)
class PoseConfig:
    """Human pose; the defaults are those of the pose ResNet on MPII."""

    sigma: float | None = None
    """Standard deviation of the target Gaussians in heat-map pixels.
    By default 2 for 64 × 64 maps, in proportion for other sizes, and at least 1."""
    scale: float = 0.25
    """Standard deviation, and largest deviation from 1, of the random scale of training crops."""
    rotation: float = 30.0
    """Standard deviation of the random rotation in degrees; 60 % of the training crops are rotated."""
    flip_test: bool = True
    """Average the heat maps of each test image and its mirror image."""

    def __post_init__(self) -> None:
        valid = self.sigma is None or (math.isfinite(self.sigma) and self.sigma > 0)
        require(valid, "pose.sigma", self.sigma, "must be positive")
        require(0 <= self.scale < 1, "pose.scale", self.scale, "must be at least 0 and below 1")
        require(0 <= self.rotation <= 90, "pose.rotation", self.rotation, "must be from 0 to 90 degrees")
