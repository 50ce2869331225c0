"""What users set: how scalings are measured, and when. Invalid values are refused before there is a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch.distributed as dist

from spatialgrad.sgs.apply_mode import Apply
from spatialgrad.sgs.dependence.estimator import DependenceFunction
from spatialgrad.sgs.dependence.histogram import check_bins
from spatialgrad.sgs.scaling import check_k
from spatialgrad.utils.text import is_count

Measure = Literal["mutual-information", "autocorrelation"] | DependenceFunction | None
"""How S is measured: by name, by a function, or not at all."""

NEED_MODEL = ("include", "exclude", "scalings", "replace")
"""Arguments of `SpatialGradientScaling` that are no `Settings`."""

# In epochs: the paper's schedule for CIFAR-100.
WARMUP, EVERY = 1, 5


@dataclass(frozen=True, kw_only=True)
class Live:
    """When scalings are updated from the training's own forward passes, in steps of the optimizer.

    The defaults fit trainings of any length: the first updates come soon, when maps still change quickly, and then as
    often as the paper's (`Live.paper`).
    """

    at: tuple[int, ...] = (100, 200, 400, 800, 1600)
    """Numbers of steps after which the first updates begin, in ascending order."""
    every: int = 5 * 391
    """Number of steps between two updates after these."""
    batches: int = 2
    """Steps whose forward passes give the ranges, and as many again that are counted. With gradient accumulation, or
    with a closure that is evaluated several times, all passes of a step take part."""

    @classmethod
    def paper(cls) -> Live:
        """Return the schedule of the paper's CIFAR-100 experiments (its appendix).

        A warm-up of 1 epoch, then an update every 5 epochs with 2 batches; an epoch has ⌈50,000 / 128⌉ = 391 steps.
        """
        return cls(at=(391, 5 * 391), every=5 * 391, batches=2)

    def __post_init__(self) -> None:
        if not isinstance(self.at, tuple) or not self.at or not all(map(is_count, self.at)):
            raise ValueError(f"Invalid at: {self.at!r}; it must be a tuple of steps, such as (100, 200, 400).")
        for name in ("every", "batches"):
            _check_positive(name, getattr(self, name))
        gaps = [after - before for before, after in zip(self.at, self.at[1:], strict=False)] + [self.every]
        if min(gaps) < 2 * self.batches:
            raise ValueError(
                f"Invalid schedule: an update takes {2 * self.batches} steps (twice batches={self.batches}), but "
                f"at={self.at} and every={self.every} leave only {min(gaps)} between two updates."
            )

    def due(self, step: int) -> bool:
        """Return whether an update begins after this number of steps."""
        return step == self.next_update(step - 1)

    def next_update(self, step: int) -> int:
        """Return the number of steps after which the next update begins, given the number so far."""
        later = [start for start in self.at if start > step]
        return later[0] if later else step + self.every - (step - self.at[-1]) % self.every


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of `SpatialGradientScaling` that need no model, with the same names and meanings."""

    k: float = 5.0
    measure: Measure = "mutual-information"
    live: Live | bool = False
    warmup: int = WARMUP
    every: int = EVERY
    apply: Apply = "auto"
    bins: int | str = "sturges"
    drop_near: bool = False
    max_channels: int | None = None
    process_group: dist.ProcessGroup | None = None

    def __post_init__(self) -> None:
        check_k(self.k)
        check_bins(self.bins)
        if not (self.measure in ("mutual-information", "autocorrelation", None) or callable(self.measure)):
            raise ValueError(
                f"Invalid measure: {self.measure!r}; choose 'mutual-information', 'autocorrelation', a function or "
                "None."
            )
        if self.max_channels is not None:
            _check_positive("max_channels", self.max_channels)
        if not (is_count(self.warmup) and is_count(self.every) and self.every >= 1):
            raise ValueError(
                f"Invalid schedule: warmup={self.warmup!r} must be a non-negative integer and every={self.every!r} a "
                "positive one."
            )
        if self.apply not in get_args(Apply):
            raise ValueError(f"Invalid apply: {self.apply!r}; choose from {', '.join(get_args(Apply))}.")
        if not isinstance(self.live, Live | bool):
            raise ValueError(
                f"Invalid live: {self.live!r}; choose True, False or Live(at=..., every=..., batches=...)."
            )
        if self.live and self.measure is None:
            raise ValueError("These scalings are static (measure=None), so live updates have nothing to measure.")
        if self.live and (self.warmup, self.every) != (WARMUP, EVERY):
            raise ValueError(
                f"warmup={self.warmup} and every={self.every} count epochs, but live updates count optimizer steps: "
                "live=Live(at=..., every=...)."
            )

    @property
    def schedule(self) -> Live | None:
        """The schedule of live updates; None if there are none."""
        return Live() if self.live is True else self.live or None

    @property
    def measure_name(self) -> str | None:
        """A name for the measure; None if nothing is measured."""
        measure = self.measure
        return getattr(measure, "__name__", type(measure).__name__) if callable(measure) else measure

    def identity(self) -> dict[str, object]:
        """Return what must be the same on all processes."""
        return {"measure": (self.measure_name, self.bins, self.drop_near, self.max_channels), "k": float(self.k)}


def _check_positive(name: str, value: Any) -> None:
    if not (is_count(value) and value >= 1):
        raise ValueError(f"Invalid {name}: {value!r}; it must be a positive integer.")
