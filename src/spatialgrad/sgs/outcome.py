"""The outcome of a measurement: a scaling G for every layer, checked, with one wait for the device for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spatialgrad.sgs.matrices import NO_DEPENDENCE, check_measured, check_range, mean_dependence, scaling_and_range


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was measured, by qualified name."""

    scalings: dict[str, Tensor]
    """G of every layer that was measured."""
    dependence: dict[str, Tensor]
    """S, averaged over the channels that carry information; layers without such a channel are missing."""
    idle: list[str]
    """Layers without such a channel."""
    independent: list[str]
    """Layers whose neighbouring pixels do not depend on each other at all."""


def outcome_of(dependence: Mapping[str, Tensor], k: float) -> Outcome:
    """Turn measured dependences into scalings.

    Args:
        dependence: S of shape (channels, *kernel_size) by qualified name.
        k: See `scaling_from_dependence`.

    Raises:
        ValueError: If a layer's S or G is not what the method guarantees; names the layer.
    """
    scalings, means, facts = {}, {}, []
    for name, S in dependence.items():
        G, *limits = scaling_and_range(S, k)
        mean = mean_dependence(S)
        facts.append(torch.stack([*limits, G.min(), G.mean(), mean.isnan().any(), (mean <= NO_DEPENDENCE).all()]))
        scalings[name], means[name] = G, mean
    idle, independent = [], []
    for name, (low, high, smallest, average, empty, flat) in zip(dependence, _fetched(facts), strict=True):
        try:
            check_range(low, high)
            check_measured(smallest, average)
        except ValueError as error:
            raise ValueError(f"Cannot scale {name!r}: {error}") from error
        if empty:
            idle.append(name)
        if flat:
            independent.append(name)
    used = {name: mean for name, mean in means.items() if name not in idle}
    return Outcome(scalings=scalings, dependence=used, idle=idle, independent=independent)


def _fetched(rows: list[Tensor]) -> list[list[float]]:
    """Return the values of all rows, whatever device each is on."""
    if not rows:
        return []
    values: list[list[float]] = torch.stack([row.to(rows[0]) for row in rows]).tolist()
    return values
