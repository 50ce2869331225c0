"""The step hook: multiply gradients, or what the optimizer makes of them, by G whenever an optimizer steps."""

from __future__ import annotations

import atexit
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spatialgrad.sgs.layers import NoEffectWarning, ScaledLayer, ScaledLayers, check_scaling, layout_of
from spatialgrad.sgs.live import LiveUpdate
from spatialgrad.sgs.measure import Settings
from spatialgrad.utils.distributed import check_agreement, is_distributed, local_part
from spatialgrad.utils.modules import named_convolutions, plain_name
from spatialgrad.utils.optimizers import act_on_gradients

# More backward passes without a step than any gradient accumulation has.
PATIENCE = 1000
# How many times in a row the weights may change without our step, by something other than an optimizer.
CHANGES = 3
# The name under which a gradient remembers its version after it was scaled.
_MARK = "_spatialgrad_version"


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


@dataclass(eq=False)
class Progress:
    """How far a training is, and whether its scalings will ever be measured."""

    steps: int = 0
    """Steps of all optimizers."""
    updates: int = 0
    """Updates of the scalings."""
    scheduled: bool = False
    """Whether updates come by themselves, or somebody asks when they are due."""
    given: bool = False
    """Whether scalings were given, so that they have an effect without an update."""
    advice: str = ""
    """When the first update comes, and how to have it earlier."""

    def __post_init__(self) -> None:
        _RUNNING.add(self)

    def warn_if_unused(self) -> None:
        """Warn if training has ended, and scaled nothing."""
        _RUNNING.discard(self)
        if self.steps and not self.updates and not self.given:
            what = f"No scaling was measured in {self.steps} steps, so nothing was scaled: {self.advice}."
            warnings.warn(what, NoEffectWarning, stacklevel=3)


_RUNNING: weakref.WeakSet[Progress] = weakref.WeakSet()


@atexit.register
def _warn_at_exit() -> None:
    for progress in list(_RUNNING):
        progress.warn_if_unused()


class StepHook:
    """Multiplies the gradients of layers, or their updates, by their scalings whenever an optimizer steps.

    Attributes:
        agreed: Whether all processes are known to scale in the same way.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        layers: ScaledLayers,
        settings: Settings,
        live: LiveUpdate | None,
        progress: Progress,
    ) -> None:
        self.optimizer, self.live = optimizer, live
        self.agreed = False
        self._layers, self._settings, self._progress = layers, settings, progress
        self._updated: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self._starts: dict[str, Tensor] = {}
        self._new_gradients = self._stepped = False
        self._backwards = self._backwards_without_step = self._changes_without_step = 0
        # Counting would be compiled again at every step of a compiled optimizer.
        disable: Any = torch.compiler.disable  # untyped
        self._count, self._check = disable(self._count_step), disable(self._check_agreement)
        self._handles = [
            optimizer.register_step_pre_hook(self.before_step),
            optimizer.register_step_post_hook(self.after_step),
        ]
        watched: Any = next((weight for weight in self.weights() if weight.requires_grad), None)
        if watched is not None:
            self._seen_version = watched._version
            # Weak: through a tensor, the garbage collector does not see the cycle of weight, hook and weight.
            after_backward = partial(_call_if_alive, weakref.WeakMethod(self._after_backward))
            self._handles.append(watched.register_post_accumulate_grad_hook(after_backward))

    def remove(self) -> None:
        """Remove all hooks, and end a live update."""
        for handle in self._handles:
            handle.remove()
        if self.live is not None:
            self.live.stop()

    @property
    def next_update(self) -> str:
        """When the scalings are measured next, in words."""
        if self.live is None:
            return "never" if self._settings.measure is None else "by sgs.update"
        return "now" if self.live.measuring else f"after step {self.live.schedule.next_update(self.live.step)}"

    def weights(self) -> list[Tensor]:
        """Return the weights that are scaled."""
        return [weight for layer in self._layers.of(self.optimizer) if (weight := layer.weight) is not None]

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Scale the gradients, at once or after the closure, and keep the weights whose update is scaled."""
        self._stepped = True
        if not self.agreed:
            self._check()
        self._keep_weights()
        return act_on_gradients(self._scale_gradients, args, kwargs)

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Scale the updates, and count the step."""
        self._scale_updates()
        self._count()

    # Detached tensors instead of torch.no_grad(): Ctrl-C between its begin and its end may leave gradients disabled.

    def _scale_gradients(self) -> None:
        # Set here too: a closure may run many times, and change the weights, within one step.
        self._stepped = True
        gradients, buffers = [], []
        for layer in self._layers.of(self.optimizer):
            weight = layer.weight
            gradient = None if weight is None else weight.grad
            # What has not changed since the last step is scaled already: a step that failed and is tried again, a
            # second step, or the step of a base class within a step.
            if weight is None or gradient is None or self._is_marked(gradient):
                continue
            self._new_gradients = True
            if layer.mode.apply != "update":
                own = local_part(gradient)
                gradients.append(own.detach() if own.requires_grad else own)
                buffers.append(layer.buffer(local_part(weight)))
        if gradients:
            torch._foreach_mul_(gradients, buffers)
        self._mark_gradients()

    def _keep_weights(self) -> None:
        """Keep what each weight would become if its update were 0: the weight itself, or decayed."""
        kept = []
        for layer in self._layers.of(self.optimizer):
            if layer.mode.apply != "gradient" and (parameter := layer.weight) is not None:
                weight = local_part(parameter).detach()
                kept.append((parameter, weight, self._start(layer, weight), layer.buffer(weight)))
        self._updated = kept
        if not kept:
            return
        torch._foreach_copy_([start for _, _, start, _ in kept], [weight for _, weight, _, _ in kept])
        exempt = {id(layer.weight) for layer in self._layers.of(self.optimizer) if layer.mode.decoupled_decay}
        for group in self.optimizer.param_groups if exempt else ():
            own = exempt & set(map(id, group["params"]))
            decayed = [start for parameter, _, start, _ in kept if id(parameter) in own]
            if decayed and group.get("weight_decay"):
                torch._foreach_mul_(decayed, 1 - group["lr"] * group["weight_decay"])

    def _scale_updates(self) -> None:
        # A weight without a gradient was neither updated nor decayed.
        updated = [rest for parameter, *rest in self._updated if parameter.grad is not None]
        self._updated = []
        if updated:
            # W ← W_start + G ⊙ (W_new − W_start)
            weights, starts, buffers = map(list, zip(*updated, strict=True))
            torch._foreach_sub_(weights, starts)
            torch._foreach_mul_(weights, buffers)
            torch._foreach_add_(weights, starts)

    def _start(self, layer: ScaledLayer, weight: Tensor) -> Tensor:
        """Return memory for a copy of a weight, which is allocated once."""
        start = self._starts.get(layer.name)
        if start is None or layout_of(start) != layout_of(weight):
            start = self._starts[layer.name] = torch.empty_like(weight)
        return start

    def _is_marked(self, gradient: Tensor) -> bool:
        if torch.compiler.is_compiling():
            return False
        return getattr(gradient, _MARK, None) == (local_part(gradient)._version, self._backwards)

    def _mark_gradients(self) -> None:
        if not torch.compiler.is_compiling():
            for weight in self.weights():
                if weight.grad is not None:
                    # A version alone would not tell: gradients that are views of DDP's buckets are written unseen.
                    setattr(weight.grad, _MARK, (local_part(weight.grad)._version, self._backwards))

    def _count_step(self) -> None:
        # The optimizer itself may have changed a gradient.
        self._mark_gradients()
        if not self._new_gradients:
            return
        self._new_gradients = False
        progress, layers = self._progress, self._layers
        progress.steps += 1
        lost = [layer.name for layer in layers.of(self.optimizer) if layer.weight is None]
        layers.warn_once(lost, "were parametrized or pruned after the scaling was built and are not scaled")
        if self.live is not None:
            progress.updates += self.live.after_step()
        elif self._settings.measure is None and layers.became_trainable():
            layers.warn_once(layers.select(), "became trainable and have no scaling yet; use set_scalings")
        if progress.steps == PATIENCE and not (progress.updates or progress.scheduled or progress.given):
            progress.warn_if_unused()

    def _check_agreement(self) -> None:
        check_processes("optimizer.step", self._layers, self._settings, self.live)
        self.agreed = True

    def _after_backward(self, weight: Tensor) -> None:
        """Warn when the weights change, or gradients accumulate, without our step ever running."""
        self._backwards += 1
        changed = weight._version != self._seen_version
        self._seen_version = weight._version
        if self._stepped:
            self._stepped = False
            self._backwards_without_step = self._changes_without_step = 0
            return
        self._backwards_without_step += 1
        self._changes_without_step += changed
        if self._backwards_without_step == PATIENCE or (changed and self._changes_without_step == CHANGES):
            warnings.warn(
                f"{type(self.optimizer).__name__}.step() was not called in {self._backwards_without_step} backward "
                "passes, so gradients are not scaled. Call sgs.attach() with the optimizer that you step.",
                NoEffectWarning,
                stacklevel=2,
            )


def check_processes(call: str, layers: ScaledLayers, settings: Settings, live: LiveUpdate | None = None) -> None:
    """Raise `ValueError` on all processes unless all of them make the same call, with the same layers and settings."""
    group = settings.process_group
    if is_distributed(group):  # a process alone need not read its scalings back
        # Always as many values: a process that makes another call must not break the collective.
        schedule = {"live": live and live.schedule, "step": live and live.step}
        check_agreement({"call": call, **layers.identity(), **settings.identity(), **schedule}, group)


def other_hooks(optimizers: list[Optimizer], own: list[StepHook], weights: list[Tensor]) -> list[StepHook]:
    """Return the step hooks other than `own` that already scale any of the weights."""
    wanted = set(map(id, weights))
    registered: list[Any] = [hook for each in optimizers for hook in each._optimizer_step_pre_hooks.values()]
    hooks = [hook.__self__ for hook in registered if isinstance(getattr(hook, "__self__", None), StepHook)]
    return [hook for hook in hooks if hook not in own and not wanted.isdisjoint(map(id, hook.weights()))]


def _kernels_of(model: nn.Module | Mapping[str, Tensor]) -> dict[str, tuple[tuple[int, ...], Tensor | None]]:
    """Return the kernel size and the gradient of every convolution, given the model or gradients by parameter name."""
    if isinstance(model, nn.Module):
        # Not conv.weight: of a parametrized layer, that computes the weight, which may change the layer's state.
        weights = {name: (conv, conv._parameters.get("weight")) for name, conv in named_convolutions(model).items()}
        return {
            name: (tuple(conv.kernel_size), None if weight is None else weight.grad)
            for name, (conv, weight) in weights.items()
        }
    values = {name.rpartition(".")[0]: value for name, value in model.items() if name.split(".")[-1] == "weight"}
    return {plain_name(name): (tuple(value.shape[2:]), value) for name, value in values.items() if value.dim() > 2}


def _call_if_alive(method: weakref.WeakMethod[Callable[[Tensor], None]], weight: Tensor) -> None:
    call = method()
    if call is not None:
        call(weight)
