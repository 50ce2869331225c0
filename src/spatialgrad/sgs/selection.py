"""Which convolutions take part, and why the others do not."""

from __future__ import annotations

import torch
from torch import fx, nn
from torch.nn.utils import parametrize

from spatialgrad.utils.modules import Convolution, Predicate, plain_name

FROZEN = "frozen: its weight does not require a gradient"
ELSEWHERE = "its weight is not in this optimizer"
OUTSIDE = "not in a convolution module, such as nn.Conv2d: if the model passes it to F.conv2d, it is not scaled"
EXPORTED = "in an exported graph, which has no convolution modules: train the model that was exported instead"
SCRIPTED = "scripted: TorchScript hides it; create the scaling with the model that was scripted"

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
# A larger side belongs to something else than a kernel, such as an embedding of positions.
_LARGEST_KERNEL = 31


def select_convolutions(
    model: nn.Module, include: Predicate | None = None, exclude: Predicate | None = None
) -> tuple[dict[str, list[Convolution]], dict[str, str]]:
    """Choose the convolutions whose gradients can be scaled; arguments as those of `SpatialGradientScaling`.

    Returns:
        The chosen convolutions by qualified name (several where modules share one weight), and the reason for each
        convolution, or other parameter with the shape of a kernel, that was left out.
    """
    for what, predicate in (("include", include), ("exclude", exclude)):
        if predicate is not None and not callable(predicate):
            raise TypeError(f"Invalid {what}: {predicate!r}; it must be a function (name, module) -> bool.")
    chosen: dict[str, list[Convolution]] = {}
    skipped: dict[str, str] = {}
    owner: dict[int, str] = {}
    for name, module in model.named_modules():
        name = plain_name(name)
        if isinstance(module, _TRANSPOSED):
            skipped[name] = "transposed convolution"
        if isinstance(module, torch.jit.ScriptModule) and module.original_name in {"Conv1d", "Conv2d", "Conv3d"}:
            skipped[name] = SCRIPTED
        if not isinstance(module, Convolution):
            continue
        reason = _reason_to_skip(name, module, include, exclude)
        if reason:
            skipped[name] = reason
        elif id(module.weight) in owner:
            first = owner[id(module.weight)]
            if tuple(module.kernel_size) == tuple(chosen[first][0].kernel_size):
                chosen[first].append(module)
            skipped[name] = f"shares its weight with {first!r}, where it is pooled"
        else:
            owner[id(module.weight)] = name
            chosen[name] = [module]
    return chosen, skipped | _kernels_outside_modules(model)


def _reason_to_skip(
    name: str, module: Convolution, include: Predicate | None = None, exclude: Predicate | None = None
) -> str | None:
    """Return why a convolution cannot be scaled, or should not; None if it can."""
    if all(side == 1 for side in module.kernel_size):
        return "1×1 kernel, which has no spatial positions to scale"
    if include is not None and not include(name, module):
        return "not included"
    if exclude is not None and exclude(name, module):
        return "excluded"
    if parametrize.is_parametrized(module, "weight") or "weight" not in module._parameters:
        return "parametrized weight: the optimizer does not update the kernel itself"
    weight = module.weight
    if isinstance(weight, nn.parameter.UninitializedParameter):
        return "lazy: its weight is not initialized; run the model once first"
    if weight.is_complex():
        return "complex: spatial dependence is only defined for real values"
    if not weight.requires_grad:
        return FROZEN
    if weight.dim() != 2 + len(module.kernel_size):
        return f"weight flattened to shape {tuple(weight.shape)}; shard with fully_shard (FSDP2) instead"
    return None


def _kernels_outside_modules(model: nn.Module) -> dict[str, str]:
    """Return trained parameters with the shape of a kernel that belong to no convolution module, with the reason."""
    layers = (Convolution, *_TRANSPOSED)
    inside = {id(p) for module in model.modules() if isinstance(module, layers) for p in module.parameters()}
    graphs = [module for module in model.modules() if isinstance(module, fx.GraphModule)]
    exported = {id(parameter) for graph in graphs for parameter in graph.parameters()}
    return {
        plain_name(name): EXPORTED if id(p) in exported else OUTSIDE
        for name, p in model.named_parameters()
        if id(p) not in inside and not nn.parameter.is_lazy(p) and p.requires_grad and _is_kernel(p.shape)
    }


def _is_kernel(shape: torch.Size) -> bool:
    return 3 <= len(shape) <= 5 and 1 < max(shape[2:]) <= _LARGEST_KERNEL
