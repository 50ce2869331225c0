"""What is asked of a network from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """How a network is to be built; the arguments of `create_model`."""

    num_classes: int | None
    """Number of outputs; by default the network's own."""
    in_channels: int
    """Number of channels of the images."""
    pretrained: bool
    """Whether to load pre-trained weights."""
    options: Mapping[str, Any]
    """Further arguments of the network."""
