"""The step hook: multiply gradients, or what the optimizer makes of them, by G whenever an optimizer steps."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spatialgrad.sgs.apply import Apply
from spatialgrad.sgs.matrices import check_scaling
from spatialgrad.torch_utils.distributed import local_part
from spatialgrad.torch_utils.modules import named_convolutions, plain_name
from spatialgrad.torch_utils.optimizers import act_on_gradients

# More backward passes without a step than any gradient accumulation has.
PATIENCE = 1000
# How many times in a row the weights may change without our step, by something other than an optimizer.
CHANGES = 3


class NoEffectWarning(UserWarning):
    """Something was set up that has no effect on training."""


@torch.no_grad()
def scale_gradients_(model: nn.Module | Mapping[str, Tensor], scalings: Mapping[str, Tensor]) -> None:
    """Multiply the gradients of convolution kernels position by position, in place.

    Used like `torch.nn.utils.clip_grad_norm_`: after ``backward()``, before ``optimizer.step()``. Convolutions
    without a gradient are skipped. An invalid name or scaling raises an error before any gradient changes.

    Args:
        model: Any module; wrappers such as DistributedDataParallel or a compiled module do not matter. Or gradients by
            the names of their parameters, as `torch.func.grad` returns them.
        scalings: G of shape kernel_size by the qualified name of the convolution.

    Example:
        >>> import torch
        >>> from spatialgrad import scaling_from_ratios
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 3))
        >>> model(torch.ones(1, 1, 3, 3)).backward()
        >>> scale_gradients_(model, {"0": scaling_from_ratios(alpha=2, beta=4)})
        >>> model[0].weight.grad
        tensor([[[[0.5625, 1.1250, 0.5625],
                  [1.1250, 2.2500, 1.1250],
                  [0.5625, 1.1250, 0.5625]]]])
    """
    kernels = _kernels_of(model)
    for name, scaling in scalings.items():
        if name not in kernels:
            raise KeyError(f"The model has no convolution {name!r}; it has {', '.join(kernels) or 'none'}.")
        check_scaling(name, scaling, kernels[name][0])
    for name, scaling in scalings.items():
        gradient = kernels[name][1]
        if gradient is not None:
            local_part(gradient).mul_(scaling.to(gradient.device))


class StepHook:
    """Multiplies the gradients of weights, or their updates, by filters whenever an optimizer steps.

    Args:
        optimizer: The optimizer that really steps.
        apply: ``"gradient"`` or ``"update"``.
        pairs: Returns the current weights, each with the filter that multiplies it.
        then: Called after every step, never compiled.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        apply: Apply,
        pairs: Callable[[], list[tuple[Tensor, Tensor]]],
        then: Callable[[], None] | None = None,
    ) -> None:
        self.optimizer, self.apply = optimizer, apply
        self._pairs = pairs
        disable: Any = torch.compiler.disable  # untyped
        self._then: Callable[[], None] | None = None if then is None else disable(then)
        self._before: list[Tensor] = []
        self._stepped = False
        self._depth = 0
        self._backwards_without_step = self._changes_without_step = 0
        self._handles = []
        watched: Any = next((weight for weight in self.weights() if weight.requires_grad), None)
        if watched is not None:
            self._seen_version = watched._version
            # Weak: through a tensor, the garbage collector does not see the cycle of weight, hook and weight.
            after_backward = partial(_call_if_alive, weakref.WeakMethod(self._after_backward))
            self._handles.append(watched.register_post_accumulate_grad_hook(after_backward))
        if apply == "gradient":
            self._handles.append(optimizer.register_step_pre_hook(self._scale_before_step))
            self._handles.append(optimizer.register_step_post_hook(self._after_step))
        else:
            self._handles.append(optimizer.register_step_pre_hook(self._keep_weights))
            self._handles.append(optimizer.register_step_post_hook(self._scale_update))

    def remove(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()

    def weights(self) -> list[Tensor]:
        """Return the weights that are scaled."""
        return [weight for weight, _ in self._pairs()]

    def _scale_before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._stepped = True
        if not self._begin_step():
            return None
        return act_on_gradients(self._scale_gradients, args, kwargs)

    @torch.no_grad()
    def _scale_gradients(self) -> None:
        # Set here too: a closure may run many times, and change the weights, within one step.
        self._stepped = True
        gradients, filters = [], []
        for weight, values in self._pairs():
            gradient = weight.grad
            if gradient is not None:
                gradients.append(local_part(gradient))
                filters.append(values)
        if gradients:
            torch._foreach_mul_(gradients, filters)

    @torch.no_grad()
    def _keep_weights(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._stepped = True
        if not self._begin_step():
            return
        self._before = [local_part(weight).clone() for weight in self.weights()]

    @torch.no_grad()
    def _scale_update(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._end_step():
            return
        for (weight, values), old in zip(self._pairs(), self._before, strict=True):
            new = local_part(weight)
            # W ← W_old + G ⊙ (W_new − W_old)
            new.sub_(old).mul_(values).add_(old)
        self._before = []
        if self._then is not None:
            self._then()

    def _begin_step(self) -> bool:
        """Return whether a step begins, and not the step of a base class within it, which runs all hooks again."""
        # An error may have ended the last step early; that is rare enough to look at the stack only then.
        inner = self._depth > 0 and _running_steps(self.optimizer) > 1
        self._depth = self._depth + 1 if inner else 1
        return not inner

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._end_step() and self._then is not None:
            self._then()

    def _end_step(self) -> bool:
        """Return whether the whole step has ended."""
        self._depth -= 1
        return self._depth == 0

    def _after_backward(self, weight: Tensor) -> None:
        """Warn when the weights change, or gradients accumulate, without our step ever running."""
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
                f"{name}.step() did not run during {self._backwards_without_step} backward passes, so gradients are "
                "not scaled. Attach the optimizer that really steps with sgs.attach(optimizer).",
                NoEffectWarning,
                stacklevel=2,
            )


def _kernels_of(model: nn.Module | Mapping[str, Tensor]) -> dict[str, tuple[tuple[int, ...], Tensor | None]]:
    """Return the kernel size and the gradient of every convolution, given the model or gradients by parameter name."""
    if isinstance(model, nn.Module):
        return {name: (tuple(conv.kernel_size), conv.weight.grad) for name, conv in named_convolutions(model).items()}
    weights = {name.rpartition(".")[0]: value for name, value in model.items() if name.split(".")[-1] == "weight"}
    return {plain_name(name): (tuple(value.shape[2:]), value) for name, value in weights.items() if value.dim() > 2}


def _call_if_alive(method: weakref.WeakMethod[Callable[[Tensor], None]], weight: Tensor) -> None:
    call = method()
    if call is not None:
        call(weight)


def _running_steps(optimizer: Optimizer) -> int:
    """Return how many of an optimizer's `step` methods, its own and those of its base classes, are running."""
    frame, count = sys._getframe(), 0
    while frame is not None:
        # The wrapper with which torch calls hooks around every step.
        if frame.f_globals.get("__name__") == "torch.optim.optimizer" and frame.f_locals.get("self") is optimizer:
            count += 1
        frame = frame.f_back  # type: ignore[assignment]
    return count


def check_not_scaled_twice(optimizers: list[Optimizer], own: list[StepHook], weights: list[Tensor]) -> None:
    """Raise `ValueError` if step hooks other than `own` already scale any of the weights."""
    wanted = set(map(id, weights))
    for optimizer in optimizers:
        for hook in optimizer._optimizer_step_pre_hooks.values():
            other = getattr(hook, "__self__", None)
            if isinstance(other, StepHook) and other not in own and wanted & set(map(id, other.weights())):
                raise ValueError(
                    "Another SpatialGradientScaling already scales these weights when this optimizer steps; both "
                    "together would scale twice. Call detach() on the other one first."
                )
