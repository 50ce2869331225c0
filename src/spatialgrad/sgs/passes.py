"""Training passes: which calls of a convolution belong to a forward pass of the training itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from spatialgrad.torch_utils.distributed import local_part
from spatialgrad.torch_utils.modules import input_of


class TrainingPassHook:
    """A forward pre-hook that passes a convolution's input on, in training passes alone.

    These are calls in training mode, with gradients enabled, of a weight that is trained. The recomputation of
    activation checkpointing is left out, unless it is the only pass with gradients (``use_reentrant=True``).

    A copy of the module, such as an exponential moving average or a pickled snapshot, gets a hook that does nothing
    and removes itself.

    Args:
        module: The convolution; None in copies.
        observe: Gets its input.
    """

    def __init__(self, module: nn.Module | None = None, observe: Callable[[Tensor], None] | None = None) -> None:
        self._module, self._observe = module, observe
        self._without_gradient = 0

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Observe the input of a call if it belongs to a training pass."""
        if self._module is None or self._observe is None:
            for key in [key for key, hook in module._forward_pre_hooks.items() if hook is self]:
                module._forward_pre_hooks.pop(key, None)
                module._forward_pre_hooks_with_kwargs.pop(key, None)
        elif module is self._module and module.training and self._is_first_with_gradient(module):
            maps = input_of(args, kwargs)
            if isinstance(maps, Tensor) and not _is_symbolic(maps):
                check_not_joining()
                with torch.no_grad():
                    self._observe(local_part(maps))

    def __reduce__(self) -> tuple[type[TrainingPassHook], tuple[()]]:
        return TrainingPassHook, ()

    def new_step(self) -> None:
        """Forget passes without gradients: their recomputation would have come before the step."""
        self._without_gradient = 0

    def _is_first_with_gradient(self, module: nn.Module) -> bool:
        weight = module.weight
        if not (isinstance(weight, Tensor) and weight.requires_grad):
            return False
        within_backward = torch._C._current_graph_task_id() != -1
        if not torch.is_grad_enabled():
            self._without_gradient += not within_backward
            return False
        if within_backward:
            if self._without_gradient == 0:
                return False
            self._without_gradient -= 1
        return True


def check_observable(model: nn.Module) -> None:
    """Raise `ValueError` if the forward passes of a model cannot be observed."""
    if isinstance(model, nn.DataParallel) and len(model.device_ids) > 1:
        raise ValueError(
            "live=True cannot observe DataParallel, which trains on copies of the model. Use "
            "DistributedDataParallel, or call sgs.update(loader) between epochs."
        )


def check_not_joining() -> None:
    """Raise `RuntimeError` within ``Join``, where processes that have ended do not take part in the statistics."""
    active = getattr(DistributedDataParallel, "_active_ddp_module", None)
    if active is not None and active._join_config.enable:
        raise RuntimeError(
            "live=True does not work within torch's Join context: a process that has run out of batches would be "
            "waited for. Give all processes the same number of batches (drop_last=True), or call sgs.update(loader) "
            "between epochs."
        )


def _is_symbolic(maps: Tensor) -> bool:
    """Return whether a pass only traces or counts operations, or runs under `torch.func`, so that there are no maps."""
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return (
        maps.is_meta
        or torch._C._is_tracing()
        or torch.compiler.is_compiling()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or (fake is not None and isinstance(maps, fake.FakeTensor))
    )
