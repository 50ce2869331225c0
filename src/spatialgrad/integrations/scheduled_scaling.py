"""ScheduledScaling: what the callbacks share, independent of any trainer."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from spatialgrad.sgs.scaler import SpatialGradientScaling
from spatialgrad.sgs.settings import NEED_MODEL, Settings
from spatialgrad.utils.loaders import Forward

# Number of batches of the loader that an update uses, if the user does not say.
BATCHES = 2


class ScheduledScaling:
    """A scaling under a trainer: built when training begins, updated when due, saved and restored with checkpoints.

    Args:
        batches: Number of batches of the trainer's loader that an update uses.
        settings: Keyword arguments of `SpatialGradientScaling`.

    Attributes:
        scaling: The `SpatialGradientScaling`; None until training begins.
        measures: Whether the scalings are measured, and not static.
        live: The schedule of live updates; None if the trainer's loader is used.
    """

    def __init__(self, batches: int, settings: Mapping[str, Any]) -> None:
        if batches < 1:
            raise ValueError(f"Invalid batches: {batches}; it must be at least 1.")
        # Invalid settings should fail here, not when training starts.
        checked = Settings(**{name: value for name, value in settings.items() if name not in NEED_MODEL})
        self.live, self.measures = checked.schedule, checked.measure is not None
        if self.live is not None and batches != BATCHES:
            raise ValueError(
                f"batches={batches} are those of the loader, which live updates do not use. Set the number of steps: "
                f"live=Live(batches={batches})."
            )
        self.scaling: SpatialGradientScaling | None = None
        self._batches, self._settings = batches, dict(settings)
        self._model: nn.Module | None = None
        self._restored: dict[str, Any] | None = None
        self._updated_epoch: int | None = None
        self._seed = 0

    def begin(self, model: nn.Module, optimizers: Sequence[Any], *, resumed: bool) -> None:
        """Start scaling: from a checkpoint's state, from this model's earlier scalings, or from ones."""
        if self._restored is None and resumed and model is self._model:
            self._restored = self.state_dict()
        self.end()
        self.scaling, self._model = SpatialGradientScaling(model, optimizers, **self._settings), model
        self._updated_epoch, self._seed = None, torch.initial_seed()
        if self._restored is not None:
            self.scaling.load_state_dict(self._restored["scaling"])
            self._updated_epoch, self._seed = self._restored["updated_epoch"], self._restored["seed"]
            self._restored = None
        elif resumed and self.measures:
            warnings.warn(
                "The checkpoint was written without spatial gradient scaling: the scalings start as ones.",
                stacklevel=3,
            )

    def begin_epoch(self, epoch: int, loader: Any, forward: Forward | None) -> bool:
        """Update the scalings if due and not already done before the checkpoint; return whether they were updated."""
        if self.scaling is None or not self.scaling.due(epoch) or epoch == self._updated_epoch:
            return False
        # Trainers do not restore random states before an epoch begins, so the batches must not depend on them.
        self.scaling.update(loader, self._batches, forward=forward, seed=(self._seed + epoch) % 2**63)
        self._updated_epoch = epoch
        return True

    def end(self, *, warn: bool = False) -> None:
        """Stop scaling; the scalings are kept.

        Args:
            warn: Warn if nothing was ever scaled.
        """
        if self.scaling is not None:
            self.scaling.detach(warn=warn)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold; empty before training begins."""
        if self._restored is not None or self.scaling is None:
            return self._restored or {}
        return {"scaling": self.scaling.state_dict(), "updated_epoch": self._updated_epoch, "seed": self._seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep a checkpoint's state until training begins."""
        if set(state) != {"scaling", "updated_epoch", "seed"}:
            raise ValueError(f"Not a state of spatial gradient scaling: it holds {', '.join(state) or 'nothing'}.")
        self._restored = dict(state)
