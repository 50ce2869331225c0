"""Spatial gradient scaling as a callback of the Hugging Face Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from spatialgrad.integrations.session import Session, load_framework
from spatialgrad.sgs.scaler import SpatialGradientScaling
from spatialgrad.torch_utils.loaders import Forward

if TYPE_CHECKING:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
else:
    TrainerCallback = load_framework(["transformers"], "Transformers", "transformers").TrainerCallback

# The entry of trainer_state.json under which the state is kept.
STATE_KEY = "spatialgrad"


class SpatialGradientScalingCallback(TrainerCallback):
    """Trains a model with spatial gradient scaling under the Hugging Face Trainer.

    The scalings are updated at the beginning of the epochs for which `SpatialGradientScaling.due` says so, with the
    Trainer's own training loader. Every checkpoint holds them, in its ``trainer_state.json``, from which they come
    back when the training is resumed.

    Args:
        batches: How many batches an update uses.
        forward: ``forward(model, batch)`` where the model is not called as ``model(**batch)``.
        **settings: As for `SpatialGradientScaling`: k, dependence, warmup, every, apply, …

    Attributes:
        scaling: The `SpatialGradientScaling`; None until training begins.

    Example:
        >>> from spatialgrad.integrations.transformers import SpatialGradientScalingCallback
        >>> callback = SpatialGradientScalingCallback(k=5, every=5)  # Trainer(..., callbacks=[callback])
    """

    def __init__(self, *, batches: int = 2, forward: Forward | None = None, **settings: Any) -> None:
        self._session = Session(batches, settings)
        self._forward = forward
        self._epoch = 0

    @property
    def scaling(self) -> SpatialGradientScaling | None:
        """The `SpatialGradientScaling`; None until training begins."""
        return self._session.scaling

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Attach to the optimizer, with the scalings of the checkpoint if there is one."""
        kept = _kept(state).get(STATE_KEY)
        if kept is not None:
            self._session.load_state_dict(_from_json(kept))
        self._session.begin(kwargs["model"], [kwargs["optimizer"]], resumed=state.global_step > 0)
        # Whole epochs are counted here: of a stream, the Trainer knows only fractions of an epoch of max_steps.
        self._epoch = int((state.epoch or 0) + 1e-6)
        self._keep(state)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Update the scalings if that is due."""
        loader = kwargs["train_dataloader"]
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(self._epoch)  # as the Trainer does next: the order follows from it
        if self._session.begin_epoch(self._epoch, loader, self._forward):
            self._keep(state)
        self._epoch += 1

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Have what the user may have set in the meantime in the checkpoint that is about to be written."""
        if control.should_save:
            self._keep(state)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """As after each step."""
        self.on_step_end(args, state, control)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the optimizer as it was."""
        self._session.end()
        self._session.warn_if_idle()

    def _keep(self, state: TrainerState) -> None:
        _kept(state)[STATE_KEY] = _to_json(self._session.state_dict())


def _kept(state: Any) -> dict[str, Any]:
    """What the Trainer writes into each checkpoint besides its own state, and reads from one."""
    return state.stateful_callbacks


def _to_json(session: dict[str, Any]) -> dict[str, Any]:
    scaling = session["scaling"]
    # JSON keeps the digits of every float.
    numbers = {name: values.tolist() for name, values in scaling["scalings"].items()}
    return {**session, "scaling": {**scaling, "scalings": numbers}}


def _from_json(kept: dict[str, Any]) -> dict[str, Any]:
    scaling = kept["scaling"]
    tensors = {name: torch.tensor(values, dtype=torch.float64) for name, values in scaling["scalings"].items()}
    return {**kept, "scaling": {**scaling, "scalings": tensors}}
