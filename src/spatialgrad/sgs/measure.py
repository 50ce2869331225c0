"""Measuring: what the inputs of convolutions tell about S, in forward passes of the training or over a few batches."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from spatialgrad.sgs.dependence.autocorrelation import Autocorrelation
from spatialgrad.sgs.dependence.estimator import DependenceFunction, Estimator, EstimatorFactory, FunctionEstimator
from spatialgrad.sgs.dependence.mutual_information import mutual_information_factory
from spatialgrad.sgs.dependence.window import Window
from spatialgrad.sgs.layers import ScaledLayer, ScaledLayers
from spatialgrad.sgs.scaling import check_range, dependence_limits, scaling_and_mean
from spatialgrad.sgs.settings import Settings
from spatialgrad.utils.distributed import (
    all_reduce_,
    check_agreement,
    collective_device,
    highest,
    is_distributed,
    local_part,
    raise_together,
)
from spatialgrad.utils.loaders import Forward, RandomStates, default_forward, move_to, take_batches
from spatialgrad.utils.modules import Convolution, gathering, input_of, keeping_buffers, quiet_evaluation

# What is known about a layer's inputs in a pass.
_UNSEEN, _SEEN, _TOO_SMALL = 0, 1, 2
# Why a layer could not be measured.
_REASONS = _NOT_CALLED, _IS_SMALL, _NOT_FINITE, _CONSTANT = (
    "were not called in the forward pass",
    "have inputs smaller than their kernel",
    "had NaN or infinite inputs",
    "have constant inputs",
)


class Hook:
    """A forward hook without effect, which copies of a module get in place of ours, such as its moving average."""

    def __call__(self, *args: Any) -> None:
        """Do nothing."""

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        return Hook, ()


class Observer(Hook):
    """A forward pre-hook that passes the inputs of one convolution to an estimator.

    With `training_only`, these are calls in training mode, with gradients enabled, of a weight that is trained. The
    recomputation of activation checkpointing is left out, unless it is the only pass with gradients
    (``use_reentrant=True``).

    Attributes:
        estimator: Built for the first map, on its device; None if there was none, or if maps were too small.
        status: What is known about the inputs in this pass; the largest value over all processes counts.
        too_small: Whether an input was smaller than the kernel.
    """

    def __init__(self, layer: ScaledLayer, module: Convolution, settings: Settings, training_only: bool) -> None:
        self.layer, self._module, self._settings, self._training_only = layer, module, settings, training_only
        self._window = Window.of_convolution(module)
        limit = settings.max_channels or module.in_channels
        # Only every so many channels are measured.
        self._every = -(-module.in_channels // limit)
        self.estimator: Estimator | None = None
        self.status, self.too_small, self.dropped = _UNSEEN, False, False
        self._without_gradient = 0

    def __call__(self, *call: Any) -> None:
        """Observe the input of a call."""
        module, args, kwargs = call
        if module is not self._module or self.dropped:
            return
        if self._training_only and not (module.training and self._is_first_with_gradient(module)):
            return
        maps = input_of(args, kwargs)
        if isinstance(maps, Tensor) and not (self._training_only and _is_symbolic(maps)):
            self.observe(maps)

    def register(self) -> RemovableHandle:
        """Observe the module from now on, after the user's own hooks, which may change the input."""
        return self._module.register_forward_pre_hook(self, with_kwargs=True)

    def observe(self, maps: Tensor) -> None:
        """Take in an input. What the convolution itself will refuse is left to it."""
        num_dims = self._window.num_dims
        if maps.dim() == num_dims + 1:
            maps = maps.unsqueeze(0)
        if maps.dim() != num_dims + 2 or maps.shape[1] != self._module.in_channels:
            return
        if maps.numel() == 0 or not maps.is_floating_point():
            return
        if not self._window.fits(maps.shape[2:]):
            self.status = _TOO_SMALL
            return
        self.status = max(self.status, _SEEN)
        # A plain tensor: a subclass, such as MONAI's, would pass on to the statistics.
        maps = local_part(maps.detach()).as_subclass(Tensor)[:, :: self._every]
        try:
            self.estimator_on(maps.device).observe(maps)
        except Exception as error:
            raise ValueError(f"Cannot measure the input of {self.layer.name!r}: {error}") from error

    def estimator_on(self, device: torch.device) -> Estimator:
        """Return the estimator, built on this device if there is none yet."""
        if self.estimator is None:
            channels = len(range(0, self._module.in_channels, self._every))
            self.estimator = _estimator_factory(self._settings)(channels, self._window, device)
        return self.estimator

    def end_step(self) -> None:
        """Forget passes without gradients: their recomputation would have come before the step."""
        self._without_gradient = 0

    def end_pass(self) -> None:
        """Close a pass; what was not measured in it, or only in part, is dropped."""
        self.too_small |= self.status == _TOO_SMALL
        self.dropped |= self.status != _SEEN
        self.status = _UNSEEN
        if self.dropped:
            self.estimator = None
        elif self.estimator is not None:
            self.estimator.end_pass()

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


class Measurement:
    """Measures the inputs of layers in passes, and then writes their scalings.

    Attributes:
        observers: One per convolution; layers with a shared weight have several.
        num_passes: Number of passes that have ended.
    """

    def __init__(self, layers: Iterable[ScaledLayer], settings: Settings, *, training_only: bool = False) -> None:
        self._layers, self._settings, self.group = list(layers), settings, settings.process_group
        self.observers = [
            Observer(layer, conv, settings, training_only) for layer in self._layers for conv in layer.modules
        ]
        self.num_passes = 0

    @property
    def finished(self) -> bool:
        """Whether every pass that is needed has ended."""
        return self.num_passes == (1 if callable(self._settings.measure) else 2)

    def end_pass(self) -> None:
        """Combine what all processes have gathered, and close the pass; all of them must call this together."""
        self._combine()
        for observer in self.observers:
            observer.end_pass()
        self.num_passes += 1

    def write_scalings(self, known: ScaledLayers) -> bool:
        """Replace the G and S of every layer that was measured; the others keep theirs and are named once.

        Returns:
            Whether any input was seen.

        Raises:
            ValueError: If a user's function returned values outside of [0, 1].
        """
        measured: list[tuple[ScaledLayer, Tensor, Tensor]] = []
        unmeasured: dict[str, list[str]] = {reason: [] for reason in _REASONS}
        for layer in self._layers:
            observers = [observer for observer in self.observers if observer.layer is layer]
            estimators = [observer.estimator for observer in observers if observer.estimator is not None]
            if not estimators:
                reason = _IS_SMALL if any(observer.too_small for observer in observers) else _NOT_CALLED
                unmeasured[reason].append(layer.name)
                continue
            S = torch.cat([estimator.dependence() for estimator in estimators])
            G, mean = scaling_and_mean(S, self._settings.k)
            flags = [torch.stack([estimator.invalid for estimator in estimators]).any(), mean.isnan().any()]
            # The only values that are fetched: one wait for the device per layer.
            invalid, constant, low, high = torch.stack([*flags, *dependence_limits(S)]).tolist()
            if invalid or constant:
                unmeasured[_NOT_FINITE if invalid else _CONSTANT].append(layer.name)
                continue
            try:
                check_range(low, high)
            except ValueError as error:
                raise ValueError(f"Cannot scale {layer.name!r}: {error}") from error
            measured.append((layer, G, mean))
        for layer, G, mean in measured:
            layer.set_scaling(G)
            layer.dependence = mean
            layer.num_updates += 1
        seen = len(unmeasured[_NOT_CALLED]) < len(self._layers)
        for reason, names in unmeasured.items() if seen else ():
            known.warn_once(names, f"{reason} and keep their scalings")
        return seen

    def _combine(self) -> None:
        group = self.group
        if not is_distributed(group):
            return
        device = collective_device(group)
        status = torch.tensor([observer.status for observer in self.observers], device=device)
        all_reduce_([(status, "max")], group)
        for observer, highest_status in zip(self.observers, status.tolist(), strict=True):
            observer.status = highest_status
        # A process that has seen no map of a layer takes part all the same.
        seen = [observer for observer in self.observers if observer.status == _SEEN and not observer.dropped]
        estimators = [observer.estimator_on(device) for observer in seen]
        pixels = torch.tensor([estimator.num_pixels for estimator in estimators], device=device)
        all_reduce_([(pixels, "sum"), *(item for each in estimators for item in each.partials())], group)
        for estimator, total in zip(estimators, pixels.tolist(), strict=True):
            estimator.num_pixels = total


def measure_batches(
    model: nn.Module,
    measurement: Measurement,
    data: Any,
    batches: int | None,
    *,
    forward: Forward | None,
    seed: int | None,
) -> int:
    """Run a model over the same few batches until a measurement is finished, in step with all other processes.

    Nothing but the measurement changes: the model, without wrappers that talk to other processes, runs in evaluation
    mode without gradients, and its flags and buffers, the random states and the loader's order are restored. Other
    arguments as those of `SpatialGradientScaling.update`.

    Returns:
        The number of batches that this process has measured in each pass.
    """
    device, group = next(model.parameters()).device, measurement.group
    forward = forward or default_forward
    error: BaseException | None = None
    kept: list[Any] = []
    states, handles = RandomStates(data), [observer.register() for observer in measurement.observers]
    try:
        try:
            kept = take_batches(data, batches, states, seed=seed)
        except BaseException as raised:
            error = raised
        rounds = highest(len(kept), group)
        with quiet_evaluation(model), keeping_buffers(model), gathering(model) as gather:
            while not measurement.finished:
                for index in range(rounds):
                    raise_together(error, group)
                    gather()
                    if index < len(kept):
                        try:
                            forward(model, move_to(kept[index], device))
                        except BaseException as raised:  # an interrupt, too: the other processes would wait
                            error = raised
                raise_together(error, group)
                if rounds == 0:
                    raise ValueError("The loader is empty: there is no batch to measure.")
                measurement.end_pass()
    finally:
        states.restore()
        for handle in handles:
            handle.remove()
    return len(kept)


def check_processes(
    call: str, layers: ScaledLayers, settings: Settings, schedule: tuple[object, int] | None = None
) -> None:
    """Raise `ValueError` on all processes unless all of them make the same call, with the same layers and settings.

    Args:
        call: A name for it.
        layers: The layers.
        settings: How they are measured.
        schedule: The schedule of live updates, and the number of steps so far.
    """
    group = settings.process_group
    if is_distributed(group):  # a process alone need not read its scalings back
        # Always as many values: a process that makes another call must not break the collective.
        live, step = schedule or (None, None)
        own = {"call": call, **layers.identity(), **settings.identity(), "live": live, "step": step}
        check_agreement(own, group)


def _estimator_factory(settings: Settings) -> EstimatorFactory:
    if settings.measure == "mutual-information":
        return mutual_information_factory(bins=settings.bins, drop_near=settings.drop_near)
    if settings.measure == "autocorrelation":
        return Autocorrelation
    return partial(FunctionEstimator, cast(DependenceFunction, settings.measure))


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
