"""What the callbacks share: one training under a trainer, from its first epoch or from a checkpoint."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from spatialgrad.sgs.scaler import NoEffectWarning, SpatialGradientScaling, check_settings
from spatialgrad.torch_utils.loaders import Forward


class Session:
    """Builds the scaling when training begins, updates it when it is due, and carries its state.

    Args:
        batches: How many batches of the trainer's loader an update uses.
        settings: Keyword arguments of `SpatialGradientScaling`.
    """

    def __init__(self, batches: int, settings: Mapping[str, Any]) -> None:
        if batches < 1:
            raise ValueError(f"Invalid batches: {batches}; at least one is needed.")
        # A wrong setting should not wait for the start of the training to be noticed.
        bound = inspect.signature(SpatialGradientScaling).bind(None, None, **settings)
        bound.apply_defaults()
        check_settings(**{name: bound.arguments[name] for name in inspect.signature(check_settings).parameters})
        self.batches, self.settings = batches, dict(settings)
        self.scaling: SpatialGradientScaling | None = None
        self._model: nn.Module | None = None
        self._restored: dict[str, Any] | None = None
        self._updated_epoch: int | None = None
        self._seed = 0

    def begin(self, model: nn.Module, optimizers: Sequence[Any], *, resumed: bool) -> None:
        """Start scaling: with the state of a checkpoint, with what the same model had before, or anew."""
        if self._restored is None and resumed and model is self._model:
            self._restored = self.state_dict()
        self.end()
        self.scaling, self._model = SpatialGradientScaling(model, optimizers, **self.settings), model
        self._updated_epoch, self._seed = None, torch.initial_seed()
        if self._restored is not None:
            self.scaling.load_state_dict(self._restored["scaling"])
            self._updated_epoch, self._seed = self._restored["updated_epoch"], self._restored["seed"]
            self._restored = None
        elif resumed and self.scaling.dependence is not None:
            warnings.warn(
                "The checkpoint was written without spatial gradient scaling: the scalings start as ones.",
                stacklevel=3,
            )

    def begin_epoch(self, epoch: int, loader: Any, forward: Forward | None) -> bool:
        """Update the scalings if that is due and was not done before the checkpoint; whether it was done now."""
        if self.scaling is None or not self.scaling.due(epoch) or epoch == self._updated_epoch:
            return False
        # The trainers do not restore random states before an epoch begins, so the batches must not follow from them.
        self.scaling.update(loader, self.batches, forward=forward, seed=(self._seed + epoch) % 2**63)
        self._updated_epoch = epoch
        return True

    def end(self) -> None:
        """Stop scaling; the scalings stay."""
        if self.scaling is not None:
            self.scaling.detach()

    def warn_if_idle(self) -> None:
        """Say so if the training was over before its first update."""
        scaling = self.scaling
        if scaling is not None and scaling.dependence is not None and scaling.num_updates == 0:
            warnings.warn(
                f"The training ended before epoch {scaling.warmup} (counted from 0), so that nothing was measured or "
                "scaled. Set warmup=0 to measure before the first epoch.",
                NoEffectWarning,
                stacklevel=3,
            )

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold; empty before the first training."""
        if self._restored is not None or self.scaling is None:
            return self._restored or {}
        return {"scaling": self.scaling.state_dict(), "updated_epoch": self._updated_epoch, "seed": self._seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep the state of a checkpoint for the training that is about to begin."""
        expected = {"scaling", "updated_epoch", "seed"}
        if set(state) != expected:
            raise ValueError(f"Not a state of spatial gradient scaling: it holds {', '.join(state) or 'nothing'}.")
        self._restored = dict(state)


def load_framework(names: Sequence[str], title: str, extra: str) -> Any:
    """The first of some modules that is installed.

    Args:
        names: Modules to try.
        title: What to call the framework in the error.
        extra: The extra of this package that installs it.
    """
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # A module that is missing further down is another problem, and speaks for itself.
            if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
                raise
    raise ModuleNotFoundError(f"This needs {title}, which is not installed: pip install 'spatialgrad[{extra}]'")
