"""Settings of the demonstration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spatialgrad.train.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoConfig:
    """Settings of the demonstration."""

    epochs: int = 3
    """Number of epochs that each method trains for its price."""
    steps: int = 40
    """Number of training steps for the Lemma."""
    width: float = 0.125
    """Width of the network."""
    batch_size: int = 128
    """Images per step."""
    out: Path = Path("spatialgrad-demo")
    """Output folder of the picture."""

    def __post_init__(self) -> None:
        # The first update comes after one epoch of warm-up.
        for name, least in {"epochs": 2, "steps": 1, "batch_size": 1}.items():
            if getattr(self, name) < least:
                flag = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{flag} must be at least {least}, got {getattr(self, name)}")
        if not 0 < self.width <= 1:
            raise ConfigError(f"--width must be above 0 and at most 1, got {self.width:g}")
