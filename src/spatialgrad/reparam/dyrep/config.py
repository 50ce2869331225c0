"""The settings of DyRep, apart from the controller so that training configs can hold them as a group."""

from dataclasses import dataclass
from typing import Literal, get_args

Score = Literal["synflow", "snip", "gradient-norm"]
"""The kinds of scores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DyRepConfig:
    """When and how DyRep changes a network; the defaults are those of its authors for CIFAR."""

    interval: int = 15
    """Number of epochs between two adjustments (ImageNet: 5)."""
    until: int | None = 500
    """Last epoch with an adjustment (ImageNet: 100); None for no limit."""
    score: Score = "synflow"
    """Score that is recorded at every step and decides which convolution grows: the sum of gradient · weight (synflow),
    of its absolute values (snip), or the norm of the gradient (gradient-norm)."""
    max_depth: int = 2
    """Maximum nesting of blocks."""
    spread: float = 0.02
    """Minimum standard deviation of a block's branch weights for cutting branches in it."""
    threshold: float = 0.1
    """Maximum weight, relative to the `kxk` branch, of branches to cut."""
    seed: int = 0
    """Seed of the initial weights of new branches."""

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise ValueError(f"interval must be at least 1 epoch, not {self.interval}")
        if self.until is not None and self.until < 0:
            raise ValueError(f"until must be at least 0, or None for no limit, not {self.until}")
        if self.score not in get_args(Score):
            raise ValueError(f"unknown score {self.score!r}; choose from {', '.join(get_args(Score))}")
        if self.max_depth < 1:
            raise ValueError(f"max_depth must be at least 1, not {self.max_depth}")
        for name in ("spread", "threshold"):
            value = getattr(self, name)
            if not value >= 0:  # also for NaN
                raise ValueError(f"{name} must be at least 0, not {value}")
