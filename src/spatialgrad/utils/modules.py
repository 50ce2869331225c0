"""Modules: look through wrappers, and run a model without side effects."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Predicate = Callable[[str, nn.Module], bool]

# Modules that wrap another one in place and appear as a part of its qualified name.
_WRAPPER_PARTS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


# Wrappers and names


def unwrap_model(model: nn.Module) -> nn.Module:
    """Return the user's own module inside DistributedDataParallel, a compiled module, or Fabric's wrapper."""
    return _unwrapping(model)[-1]


def for_one_process(model: nn.Module) -> nn.Module:
    """Return the model to call without other processes: the user's own module, under Fabric's precision if any."""
    *wrappers, module = _unwrapping(model)
    for wrapper in wrappers:
        if _is_fabric(wrapper):
            return type(wrapper)(module, wrapper._strategy)
    return module


def plain_name(name: str) -> str:
    """Return a qualified name without the parts that wrappers add to it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPER_PARTS)


def named_convolutions(model: nn.Module) -> dict[str, Convolution]:
    """Return every convolution by its qualified name, whatever the model is wrapped in."""
    return {
        plain_name(name): module
        for name, module in unwrap_model(model).named_modules()
        if isinstance(module, Convolution)
    }


# Running a model without side effects


@contextmanager
def quiet_evaluation(model: nn.Module) -> Iterator[None]:
    """Run a model in evaluation mode, without gradients and uncompiled; restores every module's `training` flag."""
    training = {module: module.training for module in model.modules()}
    for module in training:
        # Not module.eval(): a user's own train() or eval() may do more than set the flag.
        module.training = False
    eager = EagerMode()
    eager.start()
    try:
        with torch.no_grad():
            yield
    finally:
        eager.stop()
        for module, flag in training.items():
            module.training = flag


@contextmanager
def keeping_buffers(model: nn.Module) -> Iterator[None]:
    """Restore all buffers: some modules write to theirs even in evaluation mode (counters, caches, codebooks).

    Buffers may change their shape meanwhile. Buffers, parameters and modules that forward creates are removed again.

    Raises:
        ValueError: If the model has parameters or buffers that the first forward pass would initialize.
    """
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())
    kinds = (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)
    lazy = [name for name, tensor in tensors if isinstance(tensor, kinds)]
    if lazy:
        raise ValueError(
            f"{', '.join(lazy)} are not initialized: run the model once on a batch, and then create the optimizer and "
            "the scaling."
        )
    parts = list(model.modules())
    # Dicts of what is registered by name, and what they hold.
    held: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (members, dict(members)) for part in parts for members in (part._buffers, part._parameters, part._modules)
    ]
    buffers = [buffer for part in parts for buffer in part._buffers.values() if buffer is not None]
    # Nothing can be written into expanded memory in place.
    values = {buffer: buffer.clone() for buffer in buffers if not _overlaps(buffer)}
    try:
        yield
    finally:
        for registered, old in held:
            registered.clear()
            registered.update(old)
        for buffer, value in values.items():
            # Through .data: a backward pass that is still to come must not count this as a change.
            if (buffer.shape, buffer.dtype, buffer.device) == (value.shape, value.dtype, value.device):
                buffer.data.copy_(value)
            else:
                buffer.data = value


@contextmanager
def gathering(model: nn.Module) -> Iterator[Callable[[], None]]:
    """Yield a function that gathers a model sharded with `fully_shard` for one forward pass of each process.

    The forward pass then communicates with no other process, so processes without a batch need not take part. (A
    sharded unit that is called twice in one forward pass gathers itself again: all processes then need the same number
    of batches.) All processes must call the function together; for any other model it does nothing.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    units = [module for module in model.modules() if fsdp is not None and isinstance(module, fsdp.FSDPModule)]
    inner = {part for unit in units for part in unit.modules() if part is not unit}

    def gather() -> None:
        for unit in units:
            # Without a forward pass in between, the unit is still gathered and would not take part.
            unit.reshard()
            unit.unshard()

    try:
        yield gather
    except Exception:
        for unit in set(units) - inner:
            # An interrupted forward pass would confuse the next one. Older versions cannot reset, and newer ones only
            # after the very first forward pass.
            with suppress(AttributeError):
                unit.reset_iter_state()
        raise
    finally:
        for unit in units:
            unit.reshard()


class EagerMode:
    """Runs compiled modules uncompiled between `start` and `stop`: they do not see hooks that were added later.

    The compiler's stance is one for the whole process: compiled code runs again when all objects have stopped, or are
    gone.
    """

    _running: ClassVar[int] = 0
    _stance: ClassVar[Any] = None

    def __init__(self) -> None:
        self._stop: Callable[[], object] = lambda: None

    def start(self) -> None:
        """Run everything uncompiled."""
        self._stop()
        if EagerMode._running == 0:
            EagerMode._stance = torch.compiler.set_stance("force_eager")
        EagerMode._running += 1
        # Also when an update is abandoned in its middle, and at the end of the process.
        self._stop = weakref.finalize(self, EagerMode._release)

    def stop(self) -> None:
        """Allow compiled code again, unless another object is running."""
        self._stop()

    @staticmethod
    def _release() -> None:
        EagerMode._running -= 1
        if EagerMode._running == 0:
            EagerMode._stance.__exit__(None, None, None)


def input_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a module's input, given the arguments of its call."""
    # A subclass may give its input another name.
    return args[0] if args else next(iter(kwargs.values()), None)


def _unwrapping(model: nn.Module) -> list[nn.Module]:
    """Return a model and what it wraps, from the outermost wrapper to the user's own module."""
    layers = [model]
    while True:
        model = layers[-1]
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel) or _is_fabric(model):
            layers.append(model.module)  # type: ignore[arg-type]
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            layers.append(model._orig_mod)  # type: ignore[arg-type]
        else:
            return layers


def _overlaps(tensor: Tensor) -> bool:
    """Return whether several elements of a tensor share memory, as those of `expand` do."""
    return any(side > 1 and step == 0 for side, step in zip(tensor.shape, tensor.stride(), strict=True))


def _is_fabric(model: nn.Module) -> bool:
    return type(model).__name__ == "_FabricModule"
