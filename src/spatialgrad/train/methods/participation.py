"""Which convolutions of a network take part in a method, and why the others do not."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from spatialgrad.reparam import Branches, Reparameterization, RepOpt, named_blocks, reparameterize_
from spatialgrad.reparam.dyrep.growth import growth_points
from spatialgrad.reparam.surgery import tied_parameters
from spatialgrad.sgs.layers import select_convolutions
from spatialgrad.torch_utils.modules import Convolution
from spatialgrad.train.config.groups import TrainConfig
from spatialgrad.train.methods.base import Method
from spatialgrad.train.methods.branches import Branched
from spatialgrad.train.methods.dyrep import DyRep
from spatialgrad.train.methods.lemma import MASKS, Lemma
from spatialgrad.train.methods.repopt import RepOptSearch, RepOptTarget
from spatialgrad.train.methods.scaling import MutualInformationScaling, StaticScaling

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True, kw_only=True)
class Participation:
    """What a method does with a network."""

    reasons: Mapping[str, str]
    """Why a convolution does not take part, by qualified name; empty if it does."""
    trained: nn.Module
    """The network as it is trained, with branches if the method has them."""


def participation(method: type[Method], model: nn.Module, input_size: tuple[int, ...]) -> Participation:
    """Find out which convolutions take part in a method; the network is not changed.

    Args:
        method: The class of the method.
        model: A network as it is before the method changes it.
        input_size: Shape of one input.

    Raises:
        ValueError: If the method cannot be used with the network.
    """
    if issubclass(method, MutualInformationScaling):
        return Participation(reasons=_scaled(method, model), trained=model)
    if issubclass(method, DyRep):
        return Participation(reasons=_growing(model), trained=model)
    if issubclass(method, Branched | RepOptSearch | RepOptTarget | Lemma):
        return _branched(method, model, input_size)
    return Participation(reasons=dict.fromkeys(_convolutions(model), "plain training"), trained=model)


def _scaled(method: type[Method], model: nn.Module) -> dict[str, str]:
    chosen, skipped = select_convolutions(model)
    reasons = {name: skipped.get(name, "") for name in _convolutions(model)}
    if issubclass(method, StaticScaling):
        other = {name: convs[0].kernel_size for name, convs in chosen.items() if convs[0].kernel_size != (3, 3)}
        reasons |= {name: f"{_kernel(size)} kernel: only 3×3 kernels have this scaling" for name, size in other.items()}
    return {**reasons, **skipped}


def _growing(model: nn.Module) -> dict[str, str]:
    points, tied = growth_points(model, lambda name, module: True, max_depth=1), tied_parameters(model)

    def reason(name: str, conv: nn.Module) -> str:
        if name in points:
            return ""
        if not tied.isdisjoint(conv.parameters()):
            return "shares its parameters with another layer"
        if type(conv) is nn.Conv2d and min(conv.kernel_size) == 1:
            return f"{_kernel(conv.kernel_size)} kernel: only kernels with both sides larger than 1 grow"
        return _unlike_conv2d(conv) or "its weight is not trained"

    return {name: reason(name, conv) for name, conv in _convolutions(model).items()}


def _branched(method: type[Method], model: nn.Module, input_size: tuple[int, ...]) -> Participation:
    trained = copy.deepcopy(model)
    block: Reparameterization
    if issubclass(method, Lemma):
        block = Branches(masks=MASKS)
        reparameterize_(trained, block)
    else:
        # RepOptimizer's target multiplies the gradients of the layers that its search replaces.
        search = RepOptSearch if issubclass(method, RepOptTarget) else method
        block = method.block if issubclass(method, Branched) else RepOpt()
        converter = search(TrainConfig())
        converter.input_size = input_size
        converter.prepare_(trained)
    replaced = {name for name, _ in named_blocks(trained)}

    def reason(conv: nn.Module) -> str:
        if isinstance(conv, nn.Conv2d) and type(conv) is nn.Conv2d and not block.includes(conv):
            return f"{_kernel(conv.kernel_size)} kernel, which {block.name} does not replace"
        return _unlike_conv2d(conv) or "the forward pass does not call it as a module"

    reasons = {name: "" if name in replaced else reason(conv) for name, conv in _convolutions(model).items()}
    return Participation(reasons=reasons, trained=model if method.merges is False else trained)


def _convolutions(model: nn.Module) -> dict[str, nn.Module]:
    return {name: part for name, part in model.named_modules() if isinstance(part, (Convolution, *TRANSPOSED))}


def _unlike_conv2d(conv: nn.Module) -> str:
    """Why a module is not a plain 2-d convolution; empty if it is one."""
    if isinstance(conv, TRANSPOSED):
        return "transposed convolution"
    if not isinstance(conv, nn.Conv2d):
        return f"{type(conv).__name__}: only 2-d convolutions get branches"
    return "" if type(conv) is nn.Conv2d else f"{type(conv).__name__}: only plain nn.Conv2d layers get branches"


def _kernel(size: tuple[int, ...]) -> str:
    return "×".join(map(str, size))
