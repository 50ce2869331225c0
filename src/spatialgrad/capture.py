"""Which convolutions take part, and their input maps while the model runs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Predicate = Callable[[str, nn.Module], bool]

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
# Modules that wrap another one in place and show up as a part of its qualified name.
_WRAPPER_PARTS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def unwrap_model(model: nn.Module) -> nn.Module:
    """The user's own module inside DistributedDataParallel, a compiled module, or Fabric's wrapper."""
    return _layers(model)[-1]


def for_one_process(model: nn.Module) -> nn.Module:
    """The model to call where no other process takes part: the user's own module, in the precision of Fabric if any."""
    *wrappers, module = _layers(model)
    for wrapper in wrappers:
        if _is_fabric(wrapper):
            return type(wrapper)(module, wrapper._strategy)
    return module


def _layers(model: nn.Module) -> list[nn.Module]:
    """A model and what it wraps, from the outermost wrapper to the user's own module."""
    layers = [model]
    while True:
        model = layers[-1]
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel) or _is_fabric(model):
            layers.append(model.module)  # type: ignore[arg-type]
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            layers.append(model._orig_mod)  # type: ignore[arg-type]
        else:
            return layers


def _is_fabric(model: nn.Module) -> bool:
    return type(model).__name__ == "_FabricModule"


def named_convolutions(model: nn.Module) -> dict[str, Convolution]:
    """Every convolution by its qualified name, whatever the model is wrapped in."""
    return {
        _plain_name(name): module
        for name, module in unwrap_model(model).named_modules()
        if isinstance(module, Convolution)
    }


def select_convolutions(
    model: nn.Module, include: Predicate | None = None, exclude: Predicate | None = None
) -> tuple[dict[str, list[Convolution]], dict[str, str]]:
    """Choose the convolutions whose gradients can be scaled.

    Args:
        model: Any module.
        include: If given, only convolutions for which ``include(name, module)`` is true take part.
        exclude: Convolutions for which ``exclude(name, module)`` is true do not.

    Returns:
        The chosen convolutions by qualified name (several where modules share one weight), and the reason for each
        convolution that was left out.
    """
    chosen: dict[str, list[Convolution]] = {}
    skipped: dict[str, str] = {}
    owner: dict[int, str] = {}
    for name, module in unwrap_model(model).named_modules():
        name = _plain_name(name)
        if isinstance(module, _TRANSPOSED):
            skipped[name] = "transposed convolution"
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
    return chosen, skipped


def summarize_skipped(skipped: Mapping[str, str]) -> str:
    """The reasons with their counts, most frequent first."""
    counts = Counter(reason for reason in skipped.values())
    return ", ".join(f"{count} × {reason}" for reason, count in counts.most_common())


@contextmanager
def observing(observers: Mapping[Any, Callable[[Tensor], None]]) -> Iterator[None]:
    """Hand each module's input to its observer whenever the module is called."""

    def hook_for(observe: Callable[[Tensor], None]) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            observe(args[0] if args else kwargs["input"])

        return hook

    handles = [
        # Last in line: hooks of the user that change the input come first, as they do in training.
        module.register_forward_pre_hook(hook_for(observe), with_kwargs=True)
        for module, observe in observers.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def quiet_evaluation(model: nn.Module) -> Iterator[None]:
    """Run a model without leaving a trace: evaluation mode, no gradients, nothing compiled; flags restored."""
    training = {module: module.training for module in model.modules()}
    for module in training:
        # Not module.eval(): a user's own train() or eval() may do more than set the flag.
        module.training = False
    try:
        with torch.no_grad(), _nothing_compiled():
            yield
    finally:
        for module, flag in training.items():
            module.training = flag


@contextmanager
def gathering(model: nn.Module) -> Iterator[Callable[[], None]]:
    """Gives a function that puts a model sharded with `fully_shard` together, for one forward pass of each process.

    The forward pass then talks to no other process, so that processes without a batch need not take part. (A sharded
    unit that is called twice in one forward pass still gathers itself again: then all need equally many batches.) All
    processes must call the function together; for any other model it does nothing.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    units = [module for module in model.modules() if fsdp is not None and isinstance(module, fsdp.FSDPModule)]
    inner = {part for unit in units for part in unit.modules() if part is not unit}

    def gather() -> None:
        for unit in units:
            # Where no forward pass has come in between, it is whole still, and would not take part.
            unit.reshard()
            unit.unshard()

    try:
        yield gather
    except Exception:
        for unit in set(units) - inner:
            # A forward pass that broke off would confuse the next one. Older versions cannot tidy up after it, and
            # newer ones only after the first forward pass of all.
            with suppress(AttributeError):
                unit.reset_iter_state()
        raise
    finally:
        for unit in units:
            unit.reshard()


def _nothing_compiled() -> AbstractContextManager[None]:
    """A compiled module would not see hooks that came after it was compiled."""
    if "torch._dynamo" not in sys.modules:
        # Nothing can be compiled yet, and importing the compiler takes seconds.
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def _reason_to_skip(name: str, module: Convolution, include: Predicate | None, exclude: Predicate | None) -> str | None:
    if all(side == 1 for side in module.kernel_size):
        return "1×1 kernel: there is nothing to scale spatially"
    if include is not None and not include(name, module):
        return "not included"
    if exclude is not None and exclude(name, module):
        return "excluded"
    if parametrize.is_parametrized(module, "weight") or "weight" not in module._parameters:
        return "its weight is parametrized: what the optimizer updates is not the kernel"
    weight = module.weight
    if isinstance(weight, nn.parameter.UninitializedParameter):
        return "lazy: its weight is not initialized yet, run the model once first"
    if not weight.requires_grad:
        return "frozen: its weight does not require a gradient"
    if weight.dim() != 2 + len(module.kernel_size):
        return f"its weight was flattened to shape {tuple(weight.shape)}: shard with fully_shard (FSDP2) instead"
    return None


def _plain_name(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPER_PARTS)
