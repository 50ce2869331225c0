"""Settings of a scaling: which are valid, and which must be the same on all processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from spatialgrad.sgs.apply import Apply
from spatialgrad.sgs.dependence.window import Window
from spatialgrad.sgs.live import Live
from spatialgrad.sgs.matrices import check_k
from spatialgrad.sgs.measure import check_dependence
from spatialgrad.torch_utils.modules import Convolution
from spatialgrad.torch_utils.numbers import bytes_of, is_count

# In epochs: the paper's schedule for CIFAR-100.
WARMUP, EVERY = 1, 5


def check_settings(
    k: float,
    dependence: Any,
    warmup: int,
    every: int,
    apply: str,
    bins: int | str,
    live: Live | bool = False,
    memory: int | str | None = None,
) -> None:
    """Raise `ValueError` for settings that `SpatialGradientScaling` cannot work with."""
    check_k(k)
    check_dependence(dependence, bins)
    if not (is_count(warmup) and is_count(every) and every >= 1):
        raise ValueError(
            f"Invalid schedule: warmup={warmup!r} must be an integer from 0 on and every={every!r} one from 1 on."
        )
    if apply not in get_args(Apply):
        raise ValueError(f"Invalid apply: {apply!r}; choose from {', '.join(get_args(Apply))}.")
    if memory is not None:
        bytes_of(memory)
    if live_schedule(live) is None:
        return
    if dependence is None:
        raise ValueError("These scalings are static (dependence=None), so live updates have nothing to measure.")
    if (warmup, every) != (WARMUP, EVERY):
        raise ValueError(
            f"warmup={warmup} and every={every} are epochs, which live updates do not know. Give them in steps: "
            "live=Live(warmup=..., every=...)."
        )


def live_schedule(live: Live | bool) -> Live | None:
    """Return the schedule of live updates; None if there are none."""
    if isinstance(live, Live):
        return live
    if not isinstance(live, bool):
        raise ValueError(f"Invalid live: {live!r}; choose True, False or Live(warmup=..., every=..., batches=...).")
    return Live() if live else None


def kind_of(dependence: Any) -> Any:
    """Return a name for a measure of dependence; None if nothing is measured."""
    return getattr(dependence, "__name__", type(dependence).__name__) if callable(dependence) else dependence


def shared_settings(
    convolutions: Mapping[str, Sequence[Convolution]],
    dependence: Any,
    bins: int | str,
    drop_near: bool,
    k: float,
    memory: int | None,
) -> dict[str, Any]:
    """Return what must be the same on all processes, or they would wait for each other or get different scalings."""
    layers = {
        name: [(Window.of_convolution(conv), conv.in_channels) for conv in convs]
        for name, convs in convolutions.items()
    }
    kind = getattr(dependence, "__qualname__", type(dependence).__name__) if callable(dependence) else dependence
    return {"convolutions": layers, "dependence": (kind, bins, drop_near), "k": float(k), "memory": memory}
