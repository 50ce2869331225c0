"""Training with branches that are merged at the end: ACB, RepVGG and DBB."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from spatialgrad import reparam
from spatialgrad.train.methods.base import Deployed, Method, deploy_by_merging


class Branched(Method):
    """Every suitable convolution becomes a block with branches, from the first step to the last."""

    block: ClassVar[reparam.Reparameterization]

    def prepare_(self, model: nn.Module) -> None:
        """Put the blocks in."""
        reparam.reparameterize_(model, self.block)

    def finish(self, model: nn.Module) -> Deployed:
        """Merge the blocks."""
        return deploy_by_merging(model)


class ACB(Branched):
    """Asymmetric convolution blocks."""

    block = reparam.ACB()


class RepVGG(Branched):
    """RepVGG blocks."""

    block = reparam.RepVGG()


class DBB(Branched):
    """Diverse branch blocks."""

    block = reparam.DBB()
