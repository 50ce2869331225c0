"""What a search has found, in a few numbers per layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from spatialgrad.reparam.repopt.block import LayerScales


@dataclass(frozen=True, kw_only=True)
class ScalesSummary:
    """The multipliers of one layer for SGD: the weights of its branches, and how much channels differ."""

    kxk: float
    """Mean of s₃² over the output channels: the multiplier away from the centre."""
    pointwise: float
    """Mean of s₁²: what the centre adds."""
    identity: bool
    """Whether the centre of the diagonal adds 1."""
    kxk_spread: float
    """Standard deviation of s₃² over the output channels, relative to the mean; a single G per layer has 0."""
    pointwise_spread: float
    """The same for s₁²."""

    @property
    def centre_ratio(self) -> float:
        """Multiplier at the centre, off the diagonal, relative to that elsewhere; comparable with the ratio in a G."""
        return (self.kxk + self.pointwise) / self.kxk if self.kxk else float("inf")

    def __str__(self) -> str:
        identity = " + 1·[identity]" if self.identity else ""
        return (
            f"{self.kxk:.3f}·[k×k] + {self.pointwise:.3f}·[1×1]{identity}  (centre {self.centre_ratio:.2f} × the rest; "
            f"channels differ by {self.kxk_spread:.0%} and {self.pointwise_spread:.0%})"
        )


def explain_scales(scales: Mapping[str, LayerScales]) -> dict[str, ScalesSummary]:
    """Summarize the multipliers that follow from a search, by the layers' qualified names.

    `spatialgrad.explain` finds the branches that a measured G stands for. Here the branches are known, and what is left
    to ask is how much each of them weighs and whether it weighs the same in all channels.

    Args:
        scales: By the layers' qualified names, as from `searched_scales`.

    Example:
        >>> import torch
        >>> scales = {"0": LayerScales(torch.tensor([1.0, 1.0]), torch.tensor([0.5, 1.5]), None)}
        >>> print(explain_scales(scales)["0"])
        1.000·[k×k] + 1.250·[1×1]  (centre 2.25 × the rest; channels differ by 0% and 80%)
    """
    return {name: _summary(layer) for name, layer in scales.items()}


def _summary(layer: LayerScales) -> ScalesSummary:
    kxk, pointwise = (scale.detach().double().square() for scale in (layer.kxk, layer.pointwise))
    return ScalesSummary(
        kxk=float(kxk.mean()),
        pointwise=float(pointwise.mean()),
        identity=layer.identity is not None,
        kxk_spread=_spread(kxk),
        pointwise_spread=_spread(pointwise),
    )


def _spread(squares: Tensor) -> float:
    return float(squares.std(correction=0) / squares.mean()) if squares.any() else 0.0
