"""Live updates: measure the training's own forward passes, without a loader and without further passes."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from spatialgrad.sgs.layers import ScaledLayers
from spatialgrad.sgs.measure import Hook, Measurement
from spatialgrad.sgs.no_effect import NoEffectWarning
from spatialgrad.sgs.settings import Live, Settings
from spatialgrad.utils.modules import EagerMode


class LiveUpdate(Hook):
    """Counts the steps of one optimizer, and measures the layers that it trains when an update is due.

    During an update, it is a hook of the model: a forward pass that raises ends the update.

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

    def __call__(self, *call: Any) -> None:
        """End the update if the forward pass has raised: compiled code must not stay eager."""
        if sys.exc_info()[0] is not None:
            self.stop()

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
        self._handles.append(self._model.register_forward_hook(self, always_call=True))
        self._eager.start()
