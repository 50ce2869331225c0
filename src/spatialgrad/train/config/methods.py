"""The groups of a config that say how the network is trained: the method, and what each method needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import arg

from spatialgrad.reparam import DyRepConfig
from spatialgrad.sgs.step_hook import Apply
from spatialgrad.train.config.validation import at_least, check_name, explained, require
from spatialgrad.train.methods import METHODS


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodConfig:
    """How the network is trained."""

    name: Annotated[str, arg(name="method", prefix_name=False, metavar=f"{{{','.join(METHODS)}}}")] = "sgs"
    """baseline; sgs, sgs-autocorrelation and sgs-static scale gradients (see scaling); acb, repvgg and dbb train
    with branches; dyrep grows them (see dyrep)."""

    def __post_init__(self) -> None:
        check_name("method", self.name, METHODS)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingConfig:
    """How the methods sgs, sgs-autocorrelation and sgs-static scale gradients."""

    k: float = 5.0
    """How much weight a small dependence gets already."""
    warmup: int = 1
    """Epochs before the first update."""
    every: int = 5
    """Epochs between two updates."""
    batches: int = 2
    """Training batches that an update measures."""
    apply: Apply = "gradient"
    """Multiply the gradient before the optimizer uses it, or the update that it makes (the paper's Adagrad*)."""
    bins: int | None = None
    """Bins of the histograms; by default Sturges' rule."""
    drop_near: bool = False
    """Leave out pairs of pixels that are near in value, as the paper does on ImageNet."""
    alpha: float = 1.25
    """sgs-static: ratio of the centre to the edges of a 3×3 kernel."""
    beta: float = 1.7
    """sgs-static: ratio of the centre to the corners."""

    def __post_init__(self) -> None:
        at_least(0, self, "scaling", "warmup")
        at_least(1, self, "scaling", "every", "batches")
        at_least(2, self, "scaling", "bins")
        check_name("scaling.apply", self.apply, ("gradient", "update", "auto"))
        for name in ("k", "alpha", "beta"):
            value = getattr(self, name)
            require(math.isfinite(value) and value > 0, f"scaling.{name}", value, "must be positive")


@dataclass(frozen=True, kw_only=True, slots=True)
class GrowthConfig:
    """How the method dyrep grows and cuts branches; the defaults are its paper's for CIFAR."""

    interval: int = 15
    """Epochs between two adjustments."""
    until: int | None = 500
    """The last epoch with an adjustment."""
    score: Literal["synflow", "snip", "gradient-norm"] = "synflow"
    """What decides which convolution grows."""
    max_depth: int = 2
    """How deep blocks may be nested."""
    batches: int = 20
    """Training batches on which the statistics of new branches are measured."""

    def __post_init__(self) -> None:
        at_least(1, self, "dyrep", "batches")
        explained(lambda _: self.for_dyrep(seed=0), "dyrep")

    def for_dyrep(self, seed: int) -> DyRepConfig:
        """The same for the controller."""
        return DyRepConfig(
            interval=self.interval, until=self.until, score=self.score, max_depth=self.max_depth, seed=seed
        )
