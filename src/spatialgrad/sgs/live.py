"""Live updates: measure the training's own forward passes, without a loader and without further passes."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from spatialgrad.sgs.layers import NoEffectWarning, ScaledLayers
from spatialgrad.sgs.measure import Measurement, Settings, hook_of_a_copy
from spatialgrad.utils.modules import EagerMode
from spatialgrad.utils.text import is_count


@dataclass(frozen=True, kw_only=True)
class Live:
    """When scalings are updated from the training's own forward passes, in steps of the optimizer.

    The defaults fit trainings of any length: the first updates come soon, when maps still change quickly, and then as
    often as the paper's (`Live.paper`).
    """

    at: tuple[int, ...] = (100, 200, 400, 800, 1600)
    """Numbers of steps after which the first updates begin, in ascending order."""
    every: int = 5 * 391
    """Number of steps between two updates after these."""
    batches: int = 2
    """Steps whose forward passes give the ranges, and as many again that are counted. With gradient accumulation, or
    with a closure that is evaluated several times, all passes of a step take part."""

    @classmethod
    def paper(cls) -> Live:
        """Return the schedule of the paper's CIFAR-100 experiments (its appendix).

        A warm-up of 1 epoch, then an update every 5 epochs with 2 batches; an epoch has ⌈50,000 / 128⌉ = 391 steps.
        """
        return cls(at=(391, 5 * 391), every=5 * 391, batches=2)

    def __post_init__(self) -> None:
        if not isinstance(self.at, tuple) or not self.at or not all(map(is_count, self.at)):
            raise ValueError(f"Invalid at: {self.at!r}; it must be a tuple of steps, such as (100, 200, 400).")
        for name in ("every", "batches"):
            if not (is_count(value := getattr(self, name)) and value >= 1):
                raise ValueError(f"Invalid {name}: {value!r}; it must be a positive integer.")
        gaps = [after - before for before, after in zip(self.at, self.at[1:], strict=False)] + [self.every]
        if min(gaps) < 2 * self.batches:
            raise ValueError(
                f"Invalid schedule: an update takes {2 * self.batches} steps (twice batches={self.batches}), but "
                f"at={self.at} and every={self.every} leave only {min(gaps)} between two updates."
            )

    def due(self, step: int) -> bool:
        """Return whether an update begins after this number of steps."""
        return step == self.next_update(step - 1)

    def next_update(self, step: int) -> int:
        """Return the number of steps after which the next update begins, given the number so far."""
        later = [start for start in self.at if start > step]
        return later[0] if later else step + self.every - (step - self.at[-1]) % self.every


class LiveUpdate:
    """Counts the steps of one optimizer, and measures the layers that it trains when an update is due.

    Attributes:
        step: Number of steps so far.
    """

    def __init__(
        self, schedule: Live, model: nn.Module, optimizer: Optimizer, layers: ScaledLayers, settings: Settings
    ) -> None:
        self.schedule, self.step = schedule, 0
        self._model, self._optimizer, self._layers, self._settings = model, optimizer, layers, settings
        self._measurement: Measurement | None = None
        self._steps_in_pass = 0
        self._handles: list[RemovableHandle] = []
        # Compiled code does not see new hooks.
        self._eager = EagerMode()
        self._begin_if_due()

    @property
    def updating(self) -> bool:
        """Whether an update has gathered something, which a state does not hold."""
        return self._measurement is not None and self._steps_in_pass + self._measurement.num_passes > 0

    @property
    def measuring(self) -> bool:
        """Whether an update is under way."""
        return self._measurement is not None

    def after_step(self) -> bool:
        """Count a step; the end of a pass or of an update may fall on it. Return whether scalings were updated."""
        cuda: Any = torch.cuda  # partly untyped
        if cuda.is_initialized() and cuda.is_current_stream_capturing():
            raise RuntimeError(
                "live=True cannot count steps that are replayed from a CUDA graph. Capture the forward and backward "
                "passes alone, or call sgs.update(loader) between epochs."
            )
        self.step += 1
        measurement = self._measurement
        if measurement is None:
            self._begin_if_due()
            return False
        for observer in measurement.observers:
            observer.end_step()
        self._steps_in_pass += 1
        if self._steps_in_pass < self.schedule.batches:
            return False
        self._steps_in_pass = 0
        measurement.end_pass()
        if not measurement.finished:
            return False
        self.stop()
        seen = measurement.write_scalings(self._layers)
        if not seen:
            warnings.warn(
                f"The live update at step {self.step} saw no forward pass in training mode and measured nothing. Call "
                "model.train() before training.",
                NoEffectWarning,
                stacklevel=2,
            )
        self._begin_if_due()
        return seen

    def stop(self) -> None:
        """Remove all hooks, and drop what an update under way has gathered."""
        for handle in self._handles:
            handle.remove()
        self._measurement, self._handles, self._steps_in_pass = None, [], 0
        self._eager.stop()

    def state_dict(self) -> dict[str, Any]:
        """Return where the schedule is. An update under way is not saved: it begins again."""
        return {"step": self.step, "updating": self.measuring}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self.stop()
        self.step = int(state["step"])
        if state["updating"]:
            self._begin()

    def _begin_if_due(self) -> None:
        if self.schedule.due(self.step):
            self._begin()

    def _begin(self) -> None:
        self._layers.select()
        self._measurement = Measurement(self._layers.of(self._optimizer), self._settings, training_only=True)
        self._handles = [observer.register() for observer in self._measurement.observers]
        self._handles.append(self._model.register_forward_hook(_StopOnError(self), always_call=True))
        self._eager.start()


class _StopOnError:
    """A forward hook that ends a live update when the forward pass raises: compiled code must not stay eager."""

    def __init__(self, update: LiveUpdate) -> None:
        self._update = update

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if sys.exc_info()[0] is not None:
            self._update.stop()

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return hook_of_a_copy, ()
