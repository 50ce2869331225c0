"""Spatial gradient scaling: measured by mutual information or autocorrelation, or set by two ratios."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer

from spatialgrad.sgs.scaler import SpatialGradientScaling
from spatialgrad.sgs.scaling import scaling_from_ratios
from spatialgrad.sgs.selection import select_convolutions
from spatialgrad.sgs.settings import Live, Measure
from spatialgrad.train.errors import ConfigError
from spatialgrad.train.flags import as_config_error
from spatialgrad.train.methods.base import (
    NOTHING,
    Deployed,
    EpochContext,
    Method,
    Participation,
    StepContext,
    Update,
    all_convolutions,
    describe_kernel,
)
from spatialgrad.train.methods.controls import control_scalings
from spatialgrad.train.run import SCALINGS, Run


class MutualInformationScaling(Method):
    """Scalings from the mutual information of neighbouring pixels: the paper's method."""

    log_file = SCALINGS
    measure: ClassVar[Measure] = "mutual-information"

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Scale whenever this optimizer steps."""
        scaling = self.config.scaling
        schedule: dict[str, Any] = {"warmup": scaling.warmup, "every": scaling.every}
        if scaling.live:
            if self.measure is None:
                raise ConfigError("--scaling.live: sgs-static has nothing to measure; choose --method sgs")
            with as_config_error("--scaling.live: "):
                schedule = {"live": self._live()}
        self.sgs = SpatialGradientScaling(
            model,
            optimizer,
            k=scaling.k,
            measure=self.measure,
            apply=scaling.apply,
            bins="sturges" if scaling.bins is None else scaling.bins,
            drop_near=scaling.drop_near,
            **schedule,
        )
        self._num_logged = 0

    def _live(self) -> Live:
        """The schedule of live updates in steps."""
        scaling = self.config.scaling
        if scaling.schedule == "doubling":
            return Live(at=(100, 200, 400, 800, 1600), every=1955, batches=scaling.batches)
        warmup, every = scaling.warmup * self.steps_per_epoch, scaling.every * self.steps_per_epoch
        # Epochs that are multiples of `every` after the warm-up, as without live updates.
        return Live(at=(warmup, (warmup // every + 1) * every), every=every, batches=scaling.batches)

    def before_epoch(self, context: EpochContext) -> Update:
        """Measure the scalings when an update is due."""
        if not self.sgs.due(context.epoch):
            return NOTHING
        number = min(self.config.scaling.batches, len(context.batches))
        before = self.sgs.scalings
        measured = self.sgs.update(context.batches, batches=number, forward=context.forward)
        # A layer that could not be measured keeps its G, to which the control has been applied already.
        new = {name: G for name, G in measured.items() if not torch.equal(G, before[name])}
        self.sgs.set_scalings(control_scalings(self.config.scaling.control, new, self.config.seed))
        return self._logged()

    @property
    def busy(self) -> bool:
        """Whether a live update is in progress: a state that is saved inside one begins it again."""
        return bool(getattr(self.sgs, "updating", False))

    def no_effect_reason(self) -> str | None:
        """No update is due if the warm-up lasts as long as the training."""
        warmup, epochs = self.config.scaling.warmup, self.config.budget.epochs
        if warmup < epochs:
            return None
        return f"the warm-up (--scaling.warmup {warmup}) is as long as the training (--epochs {epochs})"

    def after_step(self, context: StepContext) -> Mapping[str, Any]:
        """Log the scalings if a live update has ended with this step."""
        return {} if self.sgs.num_updates == self._num_logged else self._logged().log

    def finish(self, model: nn.Module) -> Deployed:
        """Return the network as it is; the start of the training has told whether scaling acts at all."""
        if (sgs := getattr(self, "sgs", None)) is not None:  # None for a network that is read from a checkpoint
            sgs.detach(warn=False)
        return super().finish(model)

    def state_dict(self) -> dict[str, Any]:
        """The scalings."""
        return self.sgs.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load scalings."""
        self.sgs.load_state_dict(state)
        self._num_logged = self.sgs.num_updates

    def _logged(self) -> Update:
        self._num_logged = self.sgs.num_updates
        scalings = {name: G.tolist() for name, G in self.sgs.scalings.items()}
        log: dict[str, Any] = {"update": self.sgs.num_updates, "scalings": scalings}
        if self.measure is not None:
            log["dependence"] = {name: S.tolist() for name, S in self.sgs.dependence.items()}
        if self.sgs.num_updates <= 1:  # once is enough for the layers that take no part
            log["skipped"] = self.sgs.skipped
        return Update(log=log)

    @classmethod
    def participation(cls, model: nn.Module, input_size: tuple[int, ...]) -> Participation:
        """The convolutions whose gradients are scaled."""
        _, skipped = select_convolutions(model)
        reasons = {name: skipped.get(name, "") for name in all_convolutions(model)}
        return Participation(reasons=reasons | skipped, trained=model)


class AutocorrelationScaling(MutualInformationScaling):
    """Scalings from the linear correlation of neighbouring pixels."""

    measure = "autocorrelation"


class StaticScaling(MutualInformationScaling):
    """Scalings that never change: the same one for all 3×3 kernels, or those of another run."""

    measure = None

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Scale whenever this optimizer steps."""
        super().attach(model, optimizer)
        scaling = self.config.scaling
        if scaling.fixed is None:
            self.sgs.set_scalings(scaling_from_ratios(scaling.alpha, scaling.beta))
        else:
            with as_config_error("--scaling.fixed: "):
                self.sgs.set_scalings(last_scalings(scaling.fixed))

    def no_effect_reason(self) -> str | None:
        """The scalings act from the first step, unless they are ones."""
        scaling = self.config.scaling
        ones = scaling.fixed is None and scaling.alpha == scaling.beta == 1
        return "all scalings are 1 (--scaling.alpha 1, --scaling.beta 1)" if ones else None

    def before_epoch(self, context: EpochContext) -> Update:
        """Log the scalings once; nothing is measured."""
        return self._logged() if context.epoch == 0 else NOTHING

    @classmethod
    def participation(cls, model: nn.Module, input_size: tuple[int, ...]) -> Participation:
        """The 3×3 convolutions alone."""
        reasons = dict(super().participation(model, input_size).reasons)
        for name, convs in select_convolutions(model)[0].items():
            size = convs[0].kernel_size
            if size != (3, 3) and not reasons[name]:
                reasons[name] = f"{describe_kernel(size)} kernel: only 3×3 kernels have this scaling"
        return Participation(reasons=reasons, trained=model)


def last_scalings(folder: Path) -> dict[str, torch.Tensor]:
    """The last scalings that a run has logged, by qualified name.

    Raises:
        ValueError: If it has logged none.
    """
    updates = Run.open(folder).scalings
    if not updates:
        raise ValueError(f"the run in {folder} has logged no scalings")
    return {name: torch.tensor(G) for name, G in updates[-1]["scalings"].items()}
