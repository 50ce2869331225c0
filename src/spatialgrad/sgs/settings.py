"""Settings of a scaling: which are valid, and which must be the same on all processes."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from spatialgrad.sgs.dependence.window import Window
from spatialgrad.sgs.matrices import check_k
from spatialgrad.sgs.measure import check_dependence
from spatialgrad.sgs.step_hook import APPLY
from spatialgrad.torch_utils.modules import Convolution


def check_settings(k: float, dependence: Any, warmup: int, every: int, apply: str, bins: int | str) -> None:
    """Raise `ValueError` for settings that `SpatialGradientScaling` cannot work with."""
    check_k(k)
    check_dependence(dependence, bins)
    if not (is_count(warmup) and is_count(every) and every >= 1):
        raise ValueError(
            f"Invalid schedule: warmup={warmup!r} must be an integer from 0 on and every={every!r} one from 1 on."
        )
    if apply not in APPLY:
        raise ValueError(f"Invalid apply: {apply!r}; choose from {', '.join(APPLY)}.")


def is_count(value: Any) -> bool:
    """Return whether a value is an integer of at least 0; numpy's integers count, and so do tensors that hold one."""
    try:
        return operator.index(value) >= 0
    except TypeError:
        return False


def shared_settings(
    convolutions: Mapping[str, Sequence[Convolution]], dependence: Any, bins: int | str, drop_near: bool, k: float
) -> dict[str, Any]:
    """Return what must be the same on all processes, or they would wait for each other or get different scalings."""
    layers = {
        name: [(Window.of_convolution(conv), conv.in_channels) for conv in convs]
        for name, convs in convolutions.items()
    }
    kind = getattr(dependence, "__qualname__", type(dependence).__name__) if callable(dependence) else dependence
    return {"convolutions": layers, "dependence": (kind, bins, drop_near), "k": float(k)}
