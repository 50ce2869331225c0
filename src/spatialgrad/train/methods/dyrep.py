"""DyRep: branches grow while the network trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from spatialgrad import reparam
from spatialgrad.train.methods.base import NOTHING, Deployed, EpochContext, Method, Update, deploy_by_merging


class DyRep(Method):
    """Grows the most promising convolution now and then, and cuts branches that fall behind."""

    log_file = "growth.jsonl"
    grows = True

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Record scores whenever this optimizer steps."""
        self.controller = reparam.DyRep(model, optimizer, self.config.dyrep.for_dyrep(self.config.seed))

    def before_epoch(self, context: EpochContext) -> Update:
        """Adjust the structure when it is time."""
        if not self.controller.due(context.epoch):
            return NOTHING
        number = min(self.config.dyrep.batches, len(context.batches))
        adjustment = self.controller.adjust(context.batches, number, forward=context.forward)
        log = {"grown": adjustment.grown, "cut": {name: list(cut) for name, cut in adjustment.cut.items()}}
        return Update(log=log, changed_structure=adjustment.changed)

    def finish(self, model: nn.Module) -> Deployed:
        """Merge what has grown."""
        return deploy_by_merging(model)

    def state_dict(self) -> dict[str, Any]:
        """The grown structure and the scores."""
        return self.controller.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Grow the same structure."""
        self.controller.load_state_dict(state)
