"""Work is cut into blocks, so that temporaries stay small beside any layer's map."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

BLOCK = 1 << 20
"""Elements in a block."""


def blocks(maps: Tensor, size: int = BLOCK) -> Iterator[Tensor]:
    """Cut a batch along its first dimension into pieces of about `size` elements."""
    per_sample = max(1, maps[0].numel()) if len(maps) else 1
    return iter(maps.split(max(1, size // per_sample)))
