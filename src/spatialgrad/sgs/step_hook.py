"""The step: multiply gradients, or what the optimizer makes of them, by G."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spatialgrad.sgs.layers import ScaledLayer, ScaledLayers, check_scaling, layout_of
from spatialgrad.sgs.live import LiveUpdate
from spatialgrad.sgs.measure import check_processes
from spatialgrad.sgs.no_effect import BackwardWatch, Progress
from spatialgrad.sgs.settings import Settings
from spatialgrad.utils.distributed import local_part
from spatialgrad.utils.modules import named_convolutions, plain_name
from spatialgrad.utils.optimizers import act_on_gradients

# The name under which a gradient remembers that it was scaled: its version, and the number of backward passes.
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
        self._watch = BackwardWatch(optimizer, self.weights())
        # The gradients of a step, with this process's part of each, until the step ends.
        self._gradients: list[tuple[Tensor, Tensor]] = []
        self._new_gradients = False
        # The parameters whose update is scaled, with what each would be after an update of 0.
        self._updated: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self._starts: dict[str, Tensor] = {}
        # Counting would be compiled again at every step of a compiled optimizer.
        disable: Any = torch.compiler.disable  # untyped
        self._count, self._check = disable(self._count_step), disable(self._check_processes)
        self._handles = [
            optimizer.register_step_pre_hook(self.before_step),
            optimizer.register_step_post_hook(self.after_step),
        ]

    def remove(self) -> None:
        """Remove all hooks, and end a live update."""
        for handle in self._handles:
            handle.remove()
        self._watch.remove()
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
        self._watch.stepped = True
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
        self._watch.stepped = True
        compiling = torch.compiler.is_compiling()
        found, scaled, buffers = [], [], []
        for layer in self._layers.of(self.optimizer):
            weight = layer.weight
            gradient = None if weight is None else weight.grad
            if weight is None or gradient is None:
                continue
            own = local_part(gradient)
            found.append((gradient, own))
            # What has not changed since the last step is scaled already: a step that failed and is tried again, a
            # second step, or the step of a base class within a step.
            if not compiling and getattr(gradient, _MARK, None) == (own._version, self._watch.count):
                continue
            self._new_gradients = True
            if layer.mode.apply != "update":
                scaled.append(own.detach() if own.requires_grad else own)
                buffers.append(layer.buffer(local_part(weight)))
        if scaled:
            torch._foreach_mul_(scaled, buffers)
        if not compiling:
            self._gradients = found
            self._mark_gradients()

    def _mark_gradients(self) -> None:
        for gradient, own in self._gradients:
            # A version alone would not tell: gradients that are views of DDP's buckets are written unseen.
            setattr(gradient, _MARK, (own._version, self._watch.count))

    def _keep_weights(self) -> None:
        """Keep what each weight would become if its update were 0: the weight itself, or decayed."""
        self._updated = []
        exempt = set()
        for layer in self._layers.of(self.optimizer):
            if layer.mode.apply != "gradient" and (parameter := layer.weight) is not None:
                weight = local_part(parameter).detach()
                buffer = layer.buffer(weight, complement=True)
                self._updated.append((parameter, weight, self._start(layer, weight), buffer))
                if layer.mode.decoupled_decay:
                    exempt.add(id(parameter))
        if self._updated:
            _, weights, starts, _ = map(list, zip(*self._updated, strict=True))
            torch._foreach_copy_(starts, weights)
        for group in self.optimizer.param_groups if exempt else ():
            own = exempt.intersection(map(id, group["params"]))
            decayed = [start for parameter, _, start, _ in self._updated if id(parameter) in own]
            if decayed and group.get("weight_decay"):
                torch._foreach_mul_(decayed, 1 - group["lr"] * group["weight_decay"])

    def _start(self, layer: ScaledLayer, weight: Tensor) -> Tensor:
        """Return memory for a copy of a weight, which is allocated once."""
        start = self._starts.get(layer.name)
        if start is None or layout_of(start) != layout_of(weight):
            start = self._starts[layer.name] = torch.empty_like(weight)
        return start

    def _scale_updates(self) -> None:
        # A weight without a gradient was neither updated nor decayed.
        updated = [rest for parameter, *rest in self._updated if parameter.grad is not None]
        self._updated = []
        if updated:
            # W ← W_start + G ⊙ (W_new − W_start) = W_new + (1 − G) ⊙ (W_start − W_new), in one pass over the memory
            weights, starts, complements = map(list, zip(*updated, strict=True))
            torch._foreach_lerp_(weights, starts, complements)

    def _count_step(self) -> None:
        # The optimizer itself may have changed a gradient.
        self._mark_gradients()
        self._gradients = []
        if not self._new_gradients:
            return
        self._new_gradients = False
        progress, layers = self._progress, self._layers
        lost = [layer.name for layer in layers.of(self.optimizer) if layer.weight is None]
        layers.warn_once(lost, "were parametrized or pruned after the scaling was built and are not scaled")
        if self.live is not None:
            progress.updates += self.live.after_step()
        elif self._settings.measure is None and layers.became_trainable():
            layers.warn_once(layers.select(), "became trainable and have no scaling yet; use set_scalings")
        progress.count_step()

    def _check_processes(self) -> None:
        schedule = None if self.live is None else (self.live.schedule, self.live.step)
        check_processes("optimizer.step", self._layers, self._settings, schedule)
        self.agreed = True


def other_hooks(optimizers: list[Optimizer], own: list[StepHook], weights: list[Tensor]) -> list[StepHook]:
    """Return the step hooks other than `own` that already scale any of the weights."""
    wanted = set(map(id, weights))
    registered: list[Any] = [hook for each in optimizers for hook in each._optimizer_step_pre_hooks.values()]
    hooks = [hook.__self__ for hook in registered if isinstance(getattr(hook, "__self__", None), StepHook)]
    return [hook for hook in hooks if hook not in own and not wanted.isdisjoint(map(id, hook.weights()))]
