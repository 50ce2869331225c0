"""Where scalings meet the optimizer: before it uses the gradients, or on what it changed."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spatialgrad.torch_utils.distributed import local_part
from spatialgrad.torch_utils.modules import named_convolutions

Apply = Literal["gradient", "update", "auto"]
APPLY = ("gradient", "update", "auto")

# So many backward passes without a step are more than any gradient accumulation.
PATIENCE = 1000
# So many times in a row, the weights may change without our step: by something other than an optimizer.
CHANGES = 3


class NoEffectWarning(UserWarning):
    """Something was set up that has no effect on training."""


class StepHook:
    """Multiplies weights' gradients, or their updates, by given filters whenever an optimizer steps.

    Args:
        optimizer: The optimizer that really steps.
        apply: ``"gradient"`` or ``"update"``.
        pairs: Gives the current weights, each with the filter that multiplies it.
    """

    def __init__(self, optimizer: Optimizer, apply: Apply, pairs: Callable[[], list[tuple[Tensor, Tensor]]]) -> None:
        self.optimizer, self.apply = optimizer, apply
        self._pairs = pairs
        self._before: list[Tensor] = []
        self._stepped = False
        self._backwards_without_step = self._changes_without_step = 0
        self._handles = []
        watched = next((weight for weight, _ in pairs() if weight.requires_grad), None)
        if watched is not None:
            self._seen_version = watched._version
            self._handles.append(watched.register_post_accumulate_grad_hook(self._after_backward))
        if apply == "gradient":
            self._handles.append(optimizer.register_step_pre_hook(self._scale_before_step))
        else:
            self._handles.append(optimizer.register_step_pre_hook(self._keep_weights))
            self._handles.append(optimizer.register_step_post_hook(self._scale_update))

    def remove(self) -> None:
        """Leave the optimizer as it was."""
        for handle in self._handles:
            handle.remove()

    def weights(self) -> list[Tensor]:
        """The weights that are scaled."""
        return [weight for weight, _ in self._pairs()]

    def _scale_before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._stepped = True
        # args[0] is the optimizer itself.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._scale_gradients()
            return None
        # The closure computes the gradients, so they are not there yet.
        wrapped = partial(_scale_after, closure, self._scale_gradients)
        if len(args) > 1:
            return (args[0], wrapped, *args[2:]), kwargs
        return args, {**kwargs, "closure": wrapped}

    @torch.no_grad()
    def _scale_gradients(self) -> None:
        # Here too: a closure may run many times, and change the weights, within one step.
        self._stepped = True
        pairs = [(local_part(weight.grad), values) for weight, values in self._pairs() if weight.grad is not None]
        if pairs:
            torch._foreach_mul_([gradient for gradient, _ in pairs], [values for _, values in pairs])

    @torch.no_grad()
    def _keep_weights(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._stepped = True
        self._before = [local_part(weight).clone() for weight, _ in self._pairs()]

    @torch.no_grad()
    def _scale_update(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for (weight, values), old in zip(self._pairs(), self._before, strict=True):
            new = local_part(weight)
            # W ← W_old + G ⊙ (W_new − W_old)
            new.sub_(old).mul_(values).add_(old)
        self._before = []

    def _after_backward(self, weight: Tensor) -> None:
        """Notice when the weights change, or gradients pile up, without our step ever running."""
        changed = weight._version != self._seen_version
        self._seen_version = weight._version
        if self._stepped or self._before:
            self._stepped = False
            self._backwards_without_step = self._changes_without_step = 0
            return
        self._backwards_without_step += 1
        self._changes_without_step += changed
        if self._backwards_without_step == PATIENCE or (changed and self._changes_without_step == CHANGES):
            name = type(self.optimizer).__name__
            warnings.warn(
                f"{self._backwards_without_step} backward passes, but {name}.step() never ran, so gradients are not "
                "scaled. Attach the optimizer that really steps with sgs.attach(optimizer).",
                NoEffectWarning,
                stacklevel=2,
            )


def choose_place(apply: Apply, optimizer: Optimizer) -> Apply:
    """What ``"auto"`` stands for with this optimizer.

    An optimizer that is linear in the gradient hands a constant factor on to the weights. Any other divides it out
    again, wholly or in part, so the factor must go on what it changed.
    """
    if apply != "auto":
        return apply
    linear = isinstance(optimizer, torch.optim.SGD | torch.optim.ASGD | torch.optim.LBFGS)
    return "gradient" if linear else "update"


def check_not_scaled_twice(optimizers: list[Optimizer], own: list[StepHook], weights: list[Tensor]) -> None:
    """Raise if a weight would be multiplied more than once in a step."""
    wanted = {id(weight) for weight in weights}
    held = [id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    if any(count > 1 for key, count in Counter(held).items() if key in wanted):
        raise ValueError("A convolution's weight is in several of the optimizers: each would scale it once more.")
    for optimizer in optimizers:
        for hook in optimizer._optimizer_step_pre_hooks.values():
            other = getattr(hook, "__self__", None)
            if isinstance(other, StepHook) and other not in own and wanted & set(map(id, other.weights())):
                raise ValueError(
                    "Another SpatialGradientScaling scales these weights already when the optimizer steps, and both "
                    "together would scale twice. Call detach() on that one first."
                )


def _scale_after(closure: Callable[[], Any], scale: Callable[[], None]) -> Any:
    with torch.enable_grad():
        loss = closure()
    scale()
    return loss


@torch.no_grad()
def scale_gradients_(model: nn.Module, scalings: Mapping[str, Tensor]) -> None:
    """Multiply the gradients of convolution kernels position by position, in place.

    Used like `torch.nn.utils.clip_grad_norm_`: after ``backward()``, before ``optimizer.step()``. Convolutions
    without a gradient are passed over.

    Args:
        model: Any module; wrappers such as DistributedDataParallel or a compiled module do not matter.
        scalings: G of shape kernel_size by the qualified name of the convolution.
    """
    convolutions = named_convolutions(model)
    for name, scaling in scalings.items():
        conv = convolutions.get(name)
        if conv is None:
            raise KeyError(f"The model has no convolution {name!r}; it has {', '.join(convolutions) or 'none'}.")
        check_scaling(name, scaling, tuple(conv.kernel_size))
        if conv.weight.grad is not None:
            multiply_(conv.weight.grad, scaling)


def multiply_(tensor: Tensor, scaling: Tensor) -> None:
    """Multiply a kernel-shaped tensor, or this process's shard of it, by a scaling in place."""
    local_part(tensor).mul_(scaling.to(tensor.device))


def check_scaling(name: str, scaling: Tensor, kernel_size: tuple[int, ...]) -> None:
    """Raise unless `scaling` can multiply the kernel of the convolution `name`."""
    if not isinstance(scaling, Tensor) or tuple(scaling.shape) != kernel_size:
        got = f"shape {tuple(scaling.shape)}" if isinstance(scaling, Tensor) else type(scaling).__name__
        raise ValueError(f"The scaling of {name!r} has {got}; its kernel needs shape {kernel_size}.")
    if not bool(scaling.isfinite().all()) or bool((scaling < 0).any()):
        raise ValueError(f"The scaling of {name!r} must be finite and not negative, got\n{scaling}")
