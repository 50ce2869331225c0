"""Training with branches that are merged at the end: ACB, RepVGG and DBB."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from spatialgrad import reparam
from spatialgrad.train.methods.base import Method


class Branched(Method):
    """Replaces every suitable convolution by a block with branches for the whole training."""

    merges = True
    block: ClassVar[reparam.Reparameterization]

    def prepare_(self, model: nn.Module) -> None:
        """Insert the blocks."""
        reparam.reparameterize_(model, self.block)


class ACB(Branched):
    """Asymmetric convolution blocks."""

    block = reparam.ACB()


class RepVGG(Branched):
    """RepVGG blocks."""

    block = reparam.RepVGG()


class DBB(Branched):
    """Diverse branch blocks."""

    block = reparam.DBB()
