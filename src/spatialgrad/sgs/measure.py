"""Measuring: what the inputs of convolutions tell about S, in forward passes of the training or over a few batches."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from spatialgrad.sgs.dependence.autocorrelation import Autocorrelation
from spatialgrad.sgs.dependence.estimator import DependenceFunction, Estimator, EstimatorFactory, FunctionEstimator
from spatialgrad.sgs.dependence.histogram import check_bins
from spatialgrad.sgs.dependence.mutual_information import mutual_information_factory
from spatialgrad.sgs.dependence.window import Window
from spatialgrad.sgs.layers import ScaledLayer, ScaledLayers
from spatialgrad.sgs.scaling import NO_DEPENDENCE, check_k, check_range, dependence_limits, scaling_and_mean
from spatialgrad.utils.distributed import (
    all_reduce_,
    collective_device,
    highest,
    is_distributed,
    local_part,
    raise_together,
)
from spatialgrad.utils.loaders import Forward, RandomStates, default_forward, move_to, take_batches
from spatialgrad.utils.modules import Convolution, gathering, input_of, keeping_buffers, quiet_evaluation
from spatialgrad.utils.text import is_count

Measure = Literal["mutual-information", "autocorrelation"] | DependenceFunction | None
"""How S is measured: by name, by a function, or not at all."""

# What is known about a layer's inputs in a pass; the largest value over all processes counts.
_UNSEEN, _SEEN, _TOO_SMALL = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How G is measured; the same on all processes."""

    measure: Measure = "mutual-information"
    k: float = 5.0
    bins: int | str = "sturges"
    drop_near: bool = False
    max_channels: int | None = None
    process_group: dist.ProcessGroup | None = None

    def __post_init__(self) -> None:
        check_k(self.k)
        check_bins(self.bins)
        if not (self.measure in ("mutual-information", "autocorrelation", None) or callable(self.measure)):
            raise ValueError(
                f"Invalid measure: {self.measure!r}; choose 'mutual-information', 'autocorrelation', a function or "
                "None."
            )
        if self.max_channels is not None and not (is_count(self.max_channels) and self.max_channels >= 1):
            raise ValueError(f"Invalid max_channels: {self.max_channels!r}; it must be a positive integer.")

    @property
    def measure_name(self) -> str | None:
        """A name for the measure; None if nothing is measured."""
        measure = self.measure
        return getattr(measure, "__name__", type(measure).__name__) if callable(measure) else measure

    @property
    def estimator(self) -> EstimatorFactory:
        """What builds the estimators."""
        if self.measure == "mutual-information":
            return mutual_information_factory(bins=self.bins, drop_near=self.drop_near)
        if self.measure == "autocorrelation":
            return Autocorrelation
        return partial(FunctionEstimator, cast(DependenceFunction, self.measure))

    @property
    def num_passes(self) -> int:
        """Number of passes that a measurement takes."""
        return 1 if callable(self.measure) else 2

    def identity(self) -> dict[str, object]:
        """Return what must be the same on all processes."""
        return {"measure": (self.measure_name, self.bins, self.drop_near, self.max_channels), "k": float(self.k)}


@dataclass(eq=False)
class Part:
    """Convolutions of one layer with the same window and number of input channels, which share an estimator."""

    layer: ScaledLayer
    modules: list[Convolution]
    window: Window
    every: int
    """Only every so many channels are measured."""
    estimator: Estimator | None = None
    """Built for the first map, on its device."""
    status: int = _UNSEEN


class Measurement:
    """Measures the inputs of layers in passes, and then writes their scalings.

    Args:
        layers: To measure.
        settings: How.

    Attributes:
        num_passes: Number of passes that have ended.
    """

    def __init__(self, layers: Iterable[ScaledLayer], settings: Settings) -> None:
        self._settings = settings
        self._layers = list(layers)
        self._parts = [part for layer in self._layers for part in _parts_of(layer, settings.max_channels)]
        self._too_small: set[str] = set()
        self.num_passes = 0

    @property
    def finished(self) -> bool:
        """Whether every pass that is needed has ended."""
        return self.num_passes == self._settings.num_passes

    def observers(self, *, training_only: bool) -> list[Observer]:
        """Return a forward pre-hook for each convolution that is measured."""
        return [Observer(conv, self, part, training_only) for part in self._parts for conv in part.modules]

    def observe(self, part: Part, maps: Any) -> None:
        """Take in an input of a part's convolutions. What the convolution itself will refuse is left to it."""
        channels, num_dims = part.modules[0].in_channels, part.window.num_dims
        if not isinstance(maps, Tensor) or not maps.is_floating_point() or maps.numel() == 0:
            return
        if maps.dim() == num_dims + 1:
            maps = maps.unsqueeze(0)
        if maps.dim() != num_dims + 2 or maps.shape[1] != channels or self._was_dropped(part):
            return
        if not part.window.fits(maps.shape[2:]):
            part.status = _TOO_SMALL
            return
        part.status = max(part.status, _SEEN)
        maps = local_part(maps.detach())[:, :: part.every]
        try:
            self._estimator(part, maps.device).observe(maps)
        except Exception as error:
            raise ValueError(f"Cannot measure the input of {part.layer.name!r}: {error}") from error

    def end_pass(self) -> None:
        """Combine what all processes have gathered, and close the pass; all of them must call this together."""
        self._combine()
        for part in self._parts:
            if part.status == _TOO_SMALL:
                self._too_small.add(part.layer.name)
            if part.status == _SEEN and part.estimator is not None:
                part.estimator.end_pass()
            else:
                part.estimator = None
            part.status = _UNSEEN
        self.num_passes += 1

    def write_scalings(self, known: ScaledLayers) -> bool:
        """Replace the G and S of every layer that was measured; the others keep theirs and are named once.

        Args:
            known: Where layers are named.

        Returns:
            Whether any input was seen.

        Raises:
            ValueError: If a user's function returned values outside of [0, 1].
        """
        constant, independent, invalid, unseen = [], [], [], []
        measured: list[tuple[ScaledLayer, Tensor, Tensor]] = []
        for layer in self._layers:
            estimators = [part.estimator for part in self._parts if part.layer is layer and part.estimator is not None]
            if not estimators:
                if layer.name not in self._too_small:
                    unseen.append(layer.name)
                continue
            S = torch.cat([estimator.dependence() for estimator in estimators])
            G, mean = scaling_and_mean(S, self._settings.k)
            flags = [torch.stack([estimator.invalid for estimator in estimators]).any(), mean.isnan().any()]
            # The only values that are fetched: one wait for the device per layer.
            bad, empty, low, high = torch.stack([*flags, *dependence_limits(S)]).tolist()
            if bad:
                invalid.append(layer.name)
            elif empty:
                constant.append(layer.name)
            else:
                try:
                    check_range(low, high)
                except ValueError as error:
                    raise ValueError(f"Cannot scale {layer.name!r}: {error}") from error
                measured.append((layer, G, mean))
                if high <= NO_DEPENDENCE:
                    independent.append(layer.name)
        for layer, G, mean in measured:
            layer.set_scaling(G)
            layer.dependence = mean
        seen = len(unseen) < len(self._layers)
        if seen:
            known.warn_once(unseen, "were not called in the forward pass and keep their scalings")
        known.warn_once(sorted(self._too_small), "have inputs smaller than their kernel and keep their scalings")
        known.warn_once(invalid, "had NaN or infinite inputs and keep their scalings")
        known.warn_once(constant, "have constant inputs and keep their scalings")
        known.warn_once(independent, "have inputs without spatial dependence (S = 0); their scaling is all ones")
        return seen

    def _was_dropped(self, part: Part) -> bool:
        """Return whether a part was not measured in an earlier pass, so that later ones are of no use."""
        return self.num_passes > 0 and part.estimator is None

    def _estimator(self, part: Part, device: torch.device) -> Estimator:
        if part.estimator is None:
            channels = len(range(0, part.modules[0].in_channels, part.every))
            part.estimator = self._settings.estimator(channels, part.window, device)
        return part.estimator

    def _combine(self) -> None:
        group = self._settings.process_group
        if not is_distributed(group):
            return
        device = collective_device(group)
        status = torch.tensor([part.status for part in self._parts], device=device)
        all_reduce_([(status, "max")], group)
        for part, highest_status in zip(self._parts, status.tolist(), strict=True):
            part.status = highest_status
        # A process that has seen no map of a layer takes part all the same.
        seen = [part for part in self._parts if part.status == _SEEN and not self._was_dropped(part)]
        estimators = [self._estimator(part, device) for part in seen]
        pixels = torch.tensor([estimator.num_pixels for estimator in estimators], device=device)
        all_reduce_([(pixels, "sum"), *(item for each in estimators for item in each.partials())], group)
        for estimator, total in zip(estimators, pixels.tolist(), strict=True):
            estimator.num_pixels = total


class Observer:
    """A forward pre-hook that passes the inputs of a convolution on to a measurement.

    With `training_only`, these are calls in training mode, with gradients enabled, of a weight that is trained. The
    recomputation of activation checkpointing is left out, unless it is the only pass with gradients
    (``use_reentrant=True``). A copy of the module, such as an exponential moving average, gets a hook without effect.
    """

    def __init__(
        self,
        module: Convolution | None = None,
        measurement: Measurement | None = None,
        part: Part | None = None,
        training_only: bool = False,
    ) -> None:
        self._module, self._measurement, self._part, self._training_only = module, measurement, part, training_only
        self._without_gradient = 0

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Observe the input of a call."""
        if module is not self._module or self._measurement is None or self._part is None:
            return
        if self._training_only and not (module.training and self._is_first_with_gradient(module)):
            return
        maps = input_of(args, kwargs)
        if not (self._training_only and isinstance(maps, Tensor) and _is_symbolic(maps)):
            self._measurement.observe(self._part, maps)

    def __reduce__(self) -> tuple[type[Observer], tuple[()]]:
        return Observer, ()

    def register(self) -> RemovableHandle:
        """Observe the module from now on, after the user's own hooks, which may change the input."""
        if self._module is None:
            raise RuntimeError("The copy of an observer has no module.")
        return self._module.register_forward_pre_hook(self, with_kwargs=True)

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


def measure_batches(
    model: nn.Module,
    measurement: Measurement,
    data: Any,
    *,
    batches: int | None = None,
    forward: Forward | None = None,
    seed: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> int:
    """Run a model over the same few batches until a measurement is finished, in step with all other processes.

    Nothing but the measurement changes: the model runs in evaluation mode without gradients, and its flags and
    buffers, the random states and the loader's order are restored.

    Args:
        model: The model to run, without wrappers that talk to other processes; see `for_one_process`.
        measurement: Observes the convolutions.
        data: A loader, a list of batches, or one batch.
        batches: Number of batches; by default all of a list, and 2 of anything else.
        forward: ``forward(model, batch)``; see `default_forward`.
        seed: Seed for drawing the batches, instead of the current random states.
        group: The processes that take part; by default all of them.

    Returns:
        The number of batches that this process has measured in each pass.
    """
    device, forward = next(model.parameters()).device, forward or default_forward
    error: BaseException | None = None
    kept: list[Any] = []
    states = RandomStates(data)
    try:
        try:
            kept = take_batches(data, batches, states, seed=seed)
        except BaseException as raised:
            error = raised
        rounds = highest(len(kept), group)
        with quiet_evaluation(model), keeping_buffers(model), gathering(model) as gather:
            while not measurement.finished:
                handles = [observer.register() for observer in measurement.observers(training_only=False)]
                try:
                    for index in range(rounds):
                        raise_together(error, group)
                        gather()
                        if index < len(kept):
                            try:
                                forward(model, move_to(kept[index], device))
                            except BaseException as raised:  # an interrupt, too: the other processes would wait
                                error = raised
                finally:
                    for handle in handles:
                        handle.remove()
                raise_together(error, group)
                if rounds == 0:
                    raise ValueError("The loader is empty: there is no batch to measure.")
                measurement.end_pass()
    finally:
        states.restore()
    return len(kept)


def _parts_of(layer: ScaledLayer, max_channels: int | None) -> list[Part]:
    alike: dict[tuple[Window, int], list[Convolution]] = {}
    for conv in layer.modules:
        alike.setdefault((Window.of_convolution(conv), conv.in_channels), []).append(conv)
    return [
        Part(layer, modules, window, 1 if max_channels is None else -(-channels // max_channels))
        for (window, channels), modules in alike.items()
    ]


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
