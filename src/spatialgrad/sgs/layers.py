"""Layers: which convolutions take part, and how their inputs are observed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim import Optimizer

from spatialgrad.torch_utils.modules import Convolution, Predicate, input_of, plain_name
from spatialgrad.torch_utils.optimizers import parameter_ids

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_SCRIPTED = {"Conv1d", "Conv2d", "Conv3d"}
FROZEN = "frozen: its weight does not require a gradient"
ELSEWHERE = "its weight is not in this optimizer"


def select_convolutions(
    model: nn.Module, include: Predicate | None = None, exclude: Predicate | None = None
) -> tuple[dict[str, list[Convolution]], dict[str, str]]:
    """Choose the convolutions whose gradients can be scaled.

    Args:
        model: The user's own module; see `unwrap_model`.
        include: If given, only convolutions for which ``include(name, module)`` is true take part.
        exclude: Convolutions for which ``exclude(name, module)`` is true do not.

    Returns:
        The chosen convolutions by qualified name (several where modules share one weight), and the reason for each
        convolution that was left out.
    """
    chosen: dict[str, list[Convolution]] = {}
    skipped: dict[str, str] = {}
    owner: dict[int, str] = {}
    for name, module in model.named_modules():
        name = plain_name(name)
        if isinstance(module, _TRANSPOSED):
            skipped[name] = "transposed convolution"
        if isinstance(module, torch.jit.ScriptModule) and module.original_name in _SCRIPTED:
            skipped[name] = "scripted: TorchScript hides it; create the scaling with the model that was scripted"
        if not isinstance(module, Convolution):
            continue
        reason = reason_to_skip(name, module, include, exclude)
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
    return chosen, skipped


def reason_to_skip(
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


def trained_convolutions(
    model: nn.Module,
    optimizers: Iterable[Optimizer],
    include: Predicate | None = None,
    exclude: Predicate | None = None,
) -> tuple[dict[str, list[Convolution]], dict[str, str]]:
    """Choose the convolutions that can be scaled when these optimizers step; as `select_convolutions`.

    Raises:
        ValueError: If there is none; says why.
    """
    chosen, skipped = select_convolutions(model, include, exclude)
    if not chosen:
        raise ValueError(
            f"{type(model).__name__} has no convolution to scale: "
            f"{summarize_skipped(skipped) or 'it has no convolution modules such as nn.Conv2d'}."
        )
    for name in names_without_optimizer(chosen, optimizers):
        del chosen[name]
        skipped[name] = ELSEWHERE
    if not chosen:
        raise ValueError(
            "The optimizer holds none of the model's convolution weights. Build it from model.parameters(), after "
            "the model was moved, wrapped or sharded."
        )
    return chosen, skipped


def names_by_optimizer(
    convolutions: Mapping[str, Sequence[Convolution]], optimizers: Iterable[Optimizer]
) -> dict[Optimizer, list[str]]:
    """Return the convolutions that each optimizer trains."""
    weights = {name: id(convs[0].weight) for name, convs in convolutions.items()}
    held = {optimizer: parameter_ids(optimizer) for optimizer in optimizers}
    return {optimizer: [name for name, key in weights.items() if key in ids] for optimizer, ids in held.items()}


def names_without_optimizer(
    convolutions: Mapping[str, Sequence[Convolution]], optimizers: Iterable[Optimizer]
) -> list[str]:
    """Return the convolutions that no optimizer trains."""
    held = set().union(*names_by_optimizer(convolutions, optimizers).values())
    return [name for name in convolutions if name not in held]


def summarize_skipped(skipped: Mapping[str, str]) -> str:
    """Return the reasons with their counts, most frequent first."""
    counts = Counter(skipped.values())
    return ", ".join(f"{count} × {reason}" for reason, count in counts.most_common())


@contextmanager
def observing(observers: Mapping[Any, Callable[[Tensor], None]]) -> Iterator[None]:
    """Pass each module's input to its observer whenever the module is called."""

    def hook_for(observe: Callable[[Tensor], None]) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            observe(input_of(args, kwargs))

        return hook

    handles = [
        # Registered last: the user's own hooks that change the input run first, as they do in training.
        module.register_forward_pre_hook(hook_for(observe), with_kwargs=True)
        for module, observe in observers.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
