"""DyRep: branches that grow during training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from spatialgrad import reparam
from spatialgrad.train.methods.base import NOTHING, EpochContext, Method, Update
from spatialgrad.train.runs.folder import GROWTH


class DyRep(Method):
    """Periodically grows the most important convolution, and cuts unimportant branches."""

    log_file = GROWTH
    merges = grows = True

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Record scores whenever this optimizer steps."""
        self.controller = reparam.DyRep(model, optimizer, self.config.dyrep.with_seed(self.config.seed))

    def before_epoch(self, context: EpochContext) -> Update:
        """Adjust the structure when it is due."""
        if not self.controller.due(context.epoch):
            return NOTHING
        number = min(self.config.dyrep.batches, len(context.batches))
        adjustment = self.controller.adjust(context.batches, number, forward=context.forward)
        log = {"grown": adjustment.grown, "cut": {name: list(cut) for name, cut in adjustment.cut.items()}}
        return Update(log=log, changed_structure=adjustment.changed)

    def inaction(self) -> str | None:
        """No adjustment is due if the training ends before the first one."""
        epochs, dyrep = self.config.budget.epochs, self.config.dyrep
        if any(self.controller.due(epoch) for epoch in range(epochs)):
            return None
        until = "" if dyrep.until is None else f", --dyrep.until is {dyrep.until}"
        return f"no branch grows, as --dyrep.interval is {dyrep.interval}{until} and --epochs is {epochs}"

    def state_dict(self) -> dict[str, Any]:
        """The grown structure and the scores."""
        return self.controller.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Grow the same structure."""
        self.controller.load_state_dict(state)
