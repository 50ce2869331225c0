"""Spatial gradient scaling as a callback for the Hugging Face Trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from spatialgrad.integrations import load_framework
from spatialgrad.integrations.scheduled_scaling import BATCHES, ScheduledScaling
from spatialgrad.sgs.scaler import SpatialGradientScaling
from spatialgrad.utils.loaders import Forward

if TYPE_CHECKING:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
else:
    TrainerCallback = load_framework(["transformers"], "Transformers", "transformers").TrainerCallback

# Where trainer_state.json holds the state, among the stateful callbacks.
STATE_KEY = "spatialgrad"


class SpatialGradientScalingCallback(TrainerCallback):
    """Trains a model with spatial gradient scaling under the Hugging Face Trainer.

    The scalings are updated at the beginning of an epoch if `SpatialGradientScaling.due`, with the Trainer's own
    training loader. Every checkpoint holds them in its ``trainer_state.json``, from which a resumed training run
    restores them.

    Args:
        batches: Number of batches that an update uses.
        forward: ``forward(model, batch)`` if the model is not called as ``model(**batch)``.
        **settings: As for `SpatialGradientScaling`: k, live, measure, warmup, every, apply, … With ``live=True``,
            the scalings are updated from the training's own forward passes, and `batches` and `forward` are not needed.

    Attributes:
        scaling: The `SpatialGradientScaling`; None until training begins.

    Example:
        >>> from spatialgrad.integrations.transformers import SpatialGradientScalingCallback
        >>> callback = SpatialGradientScalingCallback(live=True)  # Trainer(..., callbacks=[callback])
    """

    def __init__(self, *, batches: int = BATCHES, forward: Forward | None = None, **settings: Any) -> None:
        self._scheduled = ScheduledScaling(batches, settings)
        self._forward = forward
        self._epoch = 0

    @property
    def scaling(self) -> SpatialGradientScaling | None:
        """The `SpatialGradientScaling`; None until training begins."""
        return self._scheduled.scaling

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Attach to the optimizer, with the scalings of the checkpoint if resuming."""
        kept = _kept(state).get(STATE_KEY)
        if kept is not None:
            self._scheduled.load_state_dict(_from_json(kept))
        self._scheduled.begin(kwargs["model"], [kwargs["optimizer"]], resumed=state.global_step > 0)
        # Epochs are counted here: for a stream, the Trainer only knows fractions of an epoch of max_steps.
        self._epoch = int((state.epoch or 0) + 1e-6)
        self._keep(state)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Update the scalings if due."""
        loader = kwargs["train_dataloader"]
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(self._epoch)  # as the Trainer does next: it determines the order
        if self._scheduled.begin_epoch(self._epoch, loader, self._forward):
            self._keep(state)
        self._epoch += 1

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Save what the user may have set in the meantime, if a checkpoint is about to be written."""
        if control.should_save:
            self._keep(state)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """As at the end of a step."""
        self.on_step_end(args, state, control)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Detach from the optimizer."""
        self._scheduled.end(warn=True)

    def _keep(self, state: TrainerState) -> None:
        _kept(state)[STATE_KEY] = _to_json(self._scheduled.state_dict())


def _kept(state: Any) -> dict[str, Any]:
    """Return what the Trainer writes into each checkpoint, and reads from one, besides its own state."""
    # A dict, though the framework declares a list.
    kept: dict[str, Any] = state.stateful_callbacks
    return kept


def _to_json(state: dict[str, Any]) -> dict[str, Any]:
    # JSON preserves floats exactly.
    return _converted(state, lambda matrix: matrix.tolist())


def _from_json(state: dict[str, Any]) -> dict[str, Any]:
    return _converted(state, lambda numbers: torch.tensor(numbers, dtype=torch.float64))


def _converted(state: dict[str, Any], matrix: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a state with every scaling and every dependence converted."""
    scaling = dict(state["scaling"])
    for key in ("scalings", "dependence"):
        scaling[key] = {name: matrix(values) for name, values in scaling[key].items()}
    return {**state, "scaling": scaling}
