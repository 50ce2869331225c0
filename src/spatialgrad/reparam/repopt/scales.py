"""From the scales of a search to the multipliers and the first weights of the plain network."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from spatialgrad.reparam.fold import centre, embed_kernel, identity_kernel
from spatialgrad.reparam.geometry import ConvGeometry
from spatialgrad.reparam.repopt.block import LayerScales, check_scales
from spatialgrad.utils.modules import named_convolutions

SCALE = re.compile(r"(?P<layer>.+)\.branches\.(?P<branch>kxk|1x1|identity)\.scale")
"""The scales of a block in the state of a model."""


@torch.no_grad()
def searched_scales(model: nn.Module) -> dict[str, LayerScales]:
    """The scales of a model that was trained with blocks of `RepOpt()`, by the layers' qualified names.

    Raises:
        ValueError: If the model has no such block.
    """
    found = scales_of_state(model.state_dict())
    if not found:
        raise ValueError("The model has no blocks of RepOpt(): convert it with reparameterize_(model, RepOpt()) first.")
    return found


def scales_of_state(state: Mapping[str, Tensor]) -> dict[str, LayerScales]:
    """The scales in the state of a model that was trained with blocks of `RepOpt()`; none if it has no such block."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, value in state.items():
        if match := SCALE.fullmatch(key):
            found.setdefault(match["layer"], {})[match["branch"]] = value.detach().clone()
    return {name: LayerScales(layer["kxk"], layer["1x1"], layer.get("identity")) for name, layer in found.items()}


@torch.no_grad()
def repopt_multipliers(model: nn.Module, scales: Mapping[str, LayerScales], *, power: int = 2) -> dict[str, Tensor]:
    """The factors on a plain convolution's gradient with which it learns as the block with constant scales does.

    That is |s₃|², plus |s₁|² at the kernel's centre, plus 1 at the centre of the diagonal where the block has an
    identity, whose scale trains itself.

    Args:
        model: The plain model.
        scales: By the layers' qualified names, as from `searched_scales`.
        power: 2 for optimizers that are linear in the gradient, 1 for Adam and its relatives.

    Returns:
        Factors of the shape of each whole weight, also where processes share it, by the layers' qualified names. They
        are not rounded to weights of half precision.
    """
    if power not in (1, 2):
        raise ValueError(f"power must be 1 or 2, got {power}.")
    multipliers = {}
    for name, conv in _layers(model, scales).items():
        layer, like, geometry = scales[name], conv.weight, ConvGeometry.of(conv)
        # With the shape and layout of the weight, but never a distributed tensor.
        factors = torch.empty_strided(
            like.shape, like.stride(), dtype=torch.promote_types(layer.kxk.dtype, like.dtype), device=like.device
        )
        factors.copy_(_per_kernel(layer.kxk, factors).abs() ** power)
        row, column = centre(geometry.kernel_size)
        factors[:, :, row, column] += (_per_kernel(layer.pointwise, factors).abs() ** power)[..., 0, 0]
        if layer.identity is not None:
            factors += _identity(geometry, factors)
        multipliers[name] = factors
    return multipliers


@torch.no_grad()
def repopt_init_(model: nn.Module, scales: Mapping[str, LayerScales]) -> None:
    """Initialise a plain model as the merged blocks: s₃ ⊙ W₃ + s₁ ⊙ W₁ + s₀ ⊙ identity, in place.

    W₃ is the weight that the model has, W₁ is drawn anew as torch initialises a convolution. Call it before processes
    share the model's weights.

    Args:
        model: A freshly built model.
        scales: By the layers' qualified names, as from `searched_scales`.
    """
    for name, conv in _layers(model, scales).items():
        layer, like, geometry = scales[name], conv.weight, ConvGeometry.of(conv)
        pointwise = geometry.new_conv(like, kernel_size=1).weight * _per_kernel(layer.pointwise, like)
        weight = like * _per_kernel(layer.kxk, like) + embed_kernel(pointwise, geometry.kernel_size)
        if layer.identity is not None:
            weight = weight + _identity(geometry, like) * _per_kernel(layer.identity, like)
        like.copy_(weight)


def _identity(geometry: ConvGeometry, like: Tensor) -> Tensor:
    return identity_kernel(geometry.in_channels, geometry.kernel_size, groups=geometry.groups, like=like)


def _per_kernel(scale: Tensor, like: Tensor) -> Tensor:
    """Scales of shape (output channels,), ready to multiply kernels."""
    return scale.to(like).view(-1, 1, 1, 1)


def _layers(model: nn.Module, scales: Mapping[str, LayerScales]) -> dict[str, nn.Conv2d]:
    """The convolutions that have scales.

    Raises:
        KeyError: If the model has no such convolution.
        UnsupportedLayerError: If scales do not fit.
    """
    convolutions = {name: conv for name, conv in named_convolutions(model).items() if isinstance(conv, nn.Conv2d)}
    missing = [name for name in scales if name not in convolutions]
    if missing:
        raise KeyError(
            f"The model has no convolution {', '.join(missing)}, for which there are scales; it has "
            f"{', '.join(convolutions) or 'none'}."
        )
    for name, layer in scales.items():
        check_scales(name, ConvGeometry.of(convolutions[name]), layer)
    return {name: convolutions[name] for name in scales}
