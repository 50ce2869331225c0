"""The block of RepOptimizer: scaled k×k, scaled 1×1 and scaled identity, summed before one BatchNorm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spatialgrad.reparam.block import BranchedConv2d, Reparameterization, UnsupportedLayerError
from spatialgrad.reparam.branches import Branch, ConvBranch, IdentityBranch, unavailable
from spatialgrad.reparam.geometry import ConvGeometry


class LayerScales(NamedTuple):
    """The scales of one layer, each of shape (output channels,)."""

    kxk: Tensor
    pointwise: Tensor
    identity: Tensor | None
    """None where the shapes allow no identity."""


@dataclass(frozen=True, kw_only=True)
class RepOpt(Reparameterization):
    """RepOptimizer's block: s₃ ⊙ k×k + s₁ ⊙ 1×1 + s₀ ⊙ identity where the shapes allow it, with one scale per channel.

    A BatchNorm after the convolution stays after the sum. The block of the search trains all scales; with `constant`
    scales it trains only its kernels and s₀, as the plain convolution with multiplied gradients does (see
    `repopt_multipliers`).
    """

    scales: Mapping[str, LayerScales] | None = field(default=None, compare=False)
    """Initial scales by the layers' qualified names, as from `searched_scales`; by default all are `initial`."""
    constant: bool = False
    """Whether s₃ and s₁ do not train."""
    initial: float = 1.0
    """Initial s₃ and s₁ without `scales`; s₀ starts at 1."""

    name: ClassVar[str] = "RepOpt"
    takes_batch_norm: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (self.initial > 0 and self.initial < float("inf")):
            raise ValueError(f"RepOpt.initial must be a positive number, got {self.initial}.")

    def includes(self, conv: nn.Conv2d) -> bool:
        """Return whether the kernel is 3×3."""
        return conv.kernel_size == (3, 3)

    def check(self, layer: str, conv: nn.Conv2d) -> None:
        """Raise `UnsupportedLayerError` for kernels without a smaller one, and for layers without given scales."""
        geometry = ConvGeometry.of(conv)
        reason = unavailable("1x1", geometry)
        if reason:
            raise UnsupportedLayerError(f"RepOpt cannot replace {layer!r}: {reason}. Leave it out with include=.")
        if self.scales is None:
            return
        if layer not in self.scales:
            raise UnsupportedLayerError(
                f"RepOpt has no scales for {layer!r}; those given are for {', '.join(self.scales) or 'no layer'}. "
                "Leave it out with include=."
            )
        check_scales(layer, geometry, self.scales[layer])

    def build(self, conv: nn.Conv2d, bn: _BatchNorm | None, layer: str = "") -> BranchedConv2d:
        """Build the block around a convolution, whose bias is added to the sum."""
        geometry, like = ConvGeometry.of(conv), conv.weight
        scales = self._new_scales(geometry, like) if self.scales is None else self.scales[layer]

        def scale(values: Tensor, trains: bool = not self.constant) -> Tensor:
            copy = values.detach().to(like).clone()
            return nn.Parameter(copy) if trains else copy

        branches: dict[str, Branch] = {
            "kxk": ConvBranch.around(_without_bias(conv), geometry, None, scale=scale(scales.kxk)),
            "1x1": ConvBranch.new("1x1", geometry, None, like=like, scale=scale(scales.pointwise)),
        }
        if scales.identity is not None:
            branches["identity"] = IdentityBranch(geometry, None, scale=scale(scales.identity, trains=True))
        for branch in branches.values():
            branch.requires_grad_(like.requires_grad)
        block = BranchedConv2d(geometry, branches, method=self.name, bias=cast("nn.Parameter | None", conv.bias))
        return block.train(conv.training)

    def _new_scales(self, geometry: ConvGeometry, like: Tensor) -> LayerScales:
        start = like.detach().new_full((geometry.out_channels,), self.initial)
        return LayerScales(start, start, None if unavailable("identity", geometry) else torch.ones_like(start))


def check_scales(layer: str, geometry: ConvGeometry, scales: LayerScales) -> None:
    """Raise `UnsupportedLayerError` unless scales are finite and fit a layer."""
    fits_identity = unavailable("identity", geometry) is None
    if fits_identity != (scales.identity is not None):
        there = "an identity" if fits_identity else "no identity"
        raise UnsupportedLayerError(f"The scales of {layer!r} are for another layer: this one has {there} branch.")
    for name, scale in scales._asdict().items():
        if scale is not None and (tuple(scale.shape) != (geometry.out_channels,) or not scale.isfinite().all()):
            raise UnsupportedLayerError(
                f"The {name} scales of {layer!r} must be {geometry.out_channels} finite numbers, one per output "
                f"channel; they have shape {tuple(scale.shape)}."
            )


def _without_bias(conv: nn.Conv2d) -> nn.Conv2d:
    """Return the convolution, or one with the same weight if it has a bias."""
    if conv.bias is None:
        return conv
    bare = ConvGeometry.of(conv).empty_conv(bias=False, like=conv.weight)
    bare.weight = conv.weight
    return bare
