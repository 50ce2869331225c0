"""Spatial gradient scaling as a callback for Lightning's Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from spatialgrad.integrations import load_framework
from spatialgrad.integrations.scheduled_scaling import BATCHES, ScheduledScaling
from spatialgrad.sgs.scaler import SpatialGradientScaling
from spatialgrad.utils.loaders import Forward, default_forward

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    Callback = load_framework(["lightning.pytorch", "pytorch_lightning"], "Lightning", "lightning").Callback


class SpatialGradientScalingCallback(Callback):
    """Trains a LightningModule with spatial gradient scaling.

    The scalings are updated at the beginning of an epoch if `SpatialGradientScaling.due`, with the Trainer's own
    training loader, batch transfer and precision. They are saved in the Trainer's checkpoints. If the module has
    several optimizers, each convolution is scaled when its own optimizer steps.

    Args:
        batches: Number of batches that an update uses.
        forward: ``forward(module, batch)`` if the module is not called as ``module(x)`` or ``module(**batch)``.
        **settings: As for `SpatialGradientScaling`: k, live, measure, warmup, every, apply, … With ``live=True``,
            the scalings are updated from the training's own forward passes, and `batches` and `forward` are not needed.

    Attributes:
        scaling: The `SpatialGradientScaling`; None until training begins.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from spatialgrad.integrations.lightning import SpatialGradientScalingCallback
        >>> trainer = Trainer(callbacks=[SpatialGradientScalingCallback(live=True)])
    """

    def __init__(self, *, batches: int = BATCHES, forward: Forward | None = None, **settings: Any) -> None:
        super().__init__()
        self._scheduled = ScheduledScaling(batches, settings)
        self._forward = forward

    @property
    def scaling(self) -> SpatialGradientScaling | None:
        """The `SpatialGradientScaling`; None until training begins."""
        return self._scheduled.scaling

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach to the optimizers."""
        uses_loader = self._scheduled.measures and self._scheduled.live is None
        if uses_loader and self._forward is None and not _has_forward(pl_module):
            raise ValueError(
                f"{type(pl_module).__name__} has no method `forward`, which is needed to measure its convolutions. "
                "Define one, or pass forward=lambda module, batch: ... that runs the network on a batch."
            )
        self._scheduled.begin(pl_module, trainer.optimizers, resumed=trainer.global_step > 0)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Update the scalings if due."""
        self._begin_epoch(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """As at the start of an epoch, which Lightning skips when it resumes from the end of an epoch."""
        self._begin_epoch(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Detach from the optimizers."""
        self._scheduled.end(warn=not getattr(trainer, "fast_dev_run", False))

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Detach from the optimizers."""
        self._scheduled.end()

    def state_dict(self) -> dict[str, Any]:
        """Return what Lightning's checkpoints hold."""
        return self._scheduled.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of a checkpoint."""
        self._scheduled.load_state_dict(state_dict)

    def _begin_epoch(self, trainer: Trainer) -> None:
        def forward(module: nn.Module, batch: Any) -> Any:
            batch = _transferred(trainer, batch)
            with trainer.precision_plugin.train_step_context():
                return (self._forward or default_forward)(module, batch)

        self._scheduled.begin_epoch(trainer.current_epoch, trainer.train_dataloader, forward)


def _transferred(trainer: Trainer, batch: Any) -> Any:
    """Return a batch after the hooks of training: conversion, transfer, augmentation on the device."""
    module = trainer.lightning_module
    batch = trainer.precision_plugin.convert_input(batch)
    batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
    return trainer.strategy.batch_to_device(batch, dataloader_idx=0)


def _has_forward(module: LightningModule) -> bool:
    """Return whether the module has its own `forward`; that of LightningModule only raises."""
    for cls in type(module).__mro__:
        if cls.__name__ == "LightningModule":
            break
        if "forward" in vars(cls):
            return True
    return "forward" in vars(module)
