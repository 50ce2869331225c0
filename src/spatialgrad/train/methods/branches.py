"""Training with branches that are merged at the end: blocks for the whole training, or as DyRep grows them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer

from spatialgrad import reparam
from spatialgrad.reparam.dyrep.growth import growth_points
from spatialgrad.reparam.surgery import tied_parameters
from spatialgrad.train.config import TrainConfig
from spatialgrad.train.methods.base import (
    NOTHING,
    EpochContext,
    Method,
    Participation,
    Update,
    all_convolutions,
    describe_kernel,
    unlike_conv2d,
)
from spatialgrad.train.run import GROWTH


class Branched(Method):
    """Replaces every suitable convolution by a block with branches for the whole training."""

    merges = True
    block: reparam.Reparameterization
    preserve: ClassVar[bool | None] = None
    """As that of `reparameterize_`."""

    def prepare_(self, model: nn.Module) -> None:
        """Insert the blocks."""
        try:
            reparam.reparameterize_(model, self.block, preserve=self.preserve)
        except reparam.UnsupportedLayerError:
            if self.input_size is None:
                raise
            # Nothing has changed yet: observe a forward pass that cannot be traced. Other reasons are raised again.
            images = torch.zeros(1, *self.input_size)
            reparam.reparameterize_(model, self.block, preserve=self.preserve, example_inputs=images)

    @classmethod
    def participation(cls, model: nn.Module, input_size: tuple[int, ...]) -> Participation:
        """The convolutions that become blocks."""
        trained = copy.deepcopy(model)
        method = cls(TrainConfig())
        method.input_size = input_size
        method.prepare_(trained)
        return Participation(reasons=branch_reasons(model, trained, method.block), trained=trained)


class ACB(Branched):
    """Asymmetric convolution blocks."""

    block = reparam.ACB()


class RepVGG(Branched):
    """RepVGG blocks."""

    block = reparam.RepVGG()


class QARepVGG(Branched):
    """QARepVGG blocks."""

    block = reparam.QARepVGG()


class DBB(Branched):
    """Diverse branch blocks."""

    block = reparam.DBB()


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

    def no_effect_reason(self) -> str | None:
        """No adjustment is due if the training ends before the first one."""
        epochs, dyrep = self.config.budget.epochs, self.config.dyrep
        if any(self.controller.due(epoch) for epoch in range(epochs)):
            return None
        until = "" if dyrep.until is None else f", --dyrep.until {dyrep.until}"
        return f"no branch grows in --epochs {epochs} (--dyrep.interval {dyrep.interval}{until})"

    def state_dict(self) -> dict[str, Any]:
        """The grown structure and the scores."""
        return self.controller.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Grow the same structure."""
        self.controller.load_state_dict(state)

    @classmethod
    def participation(cls, model: nn.Module, input_size: tuple[int, ...]) -> Participation:
        """The convolutions that can grow."""
        points, tied = growth_points(model, lambda name, module: True, max_depth=1), tied_parameters(model)

        def reason(name: str, conv: nn.Module) -> str:
            if name in points:
                return ""
            if not tied.isdisjoint(conv.parameters()):
                return "shares its parameters with another layer"
            if type(conv) is nn.Conv2d and min(conv.kernel_size) == 1:
                return f"{describe_kernel(conv.kernel_size)} kernel: only kernels with both sides larger than 1 grow"
            return unlike_conv2d(conv) or "its weight is not trained"

        reasons = {name: reason(name, conv) for name, conv in all_convolutions(model).items()}
        return Participation(reasons=reasons, trained=model)


def branch_reasons(model: nn.Module, trained: nn.Module, block: reparam.Reparameterization) -> dict[str, str]:
    """Why convolutions were not replaced by blocks, by qualified name; empty for those that were.

    Args:
        model: The plain network.
        trained: The same network with blocks.
        block: What they were replaced by.
    """
    replaced = {name for name, _ in reparam.named_blocks(trained)}

    def reason(conv: nn.Module) -> str:
        if type(conv) is nn.Conv2d and not block.includes(conv):
            return f"{describe_kernel(conv.kernel_size)} kernel, which {block.name} does not replace"
        return unlike_conv2d(conv) or "the forward pass does not call it as a module"

    return {name: "" if name in replaced else reason(conv) for name, conv in all_convolutions(model).items()}
