"""Training with branches that are merged at the end: ACB, RepVGG and DBB."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from spatialgrad import reparam
from spatialgrad.train.methods.base import Method


class Branched(Method):
    """Replaces every suitable convolution by a block with branches for the whole training."""

    merges = True
    block: ClassVar[reparam.Reparameterization]

    def prepare_(self, model: nn.Module) -> None:
        """Insert the blocks."""
        try:
            reparam.reparameterize_(model, self.block)
        except reparam.UnsupportedLayerError:
            if self.input_size is None:
                raise
            # Nothing has changed yet: observe a forward pass that cannot be traced. Other reasons are raised again.
            reparam.reparameterize_(model, self.block, example_inputs=torch.zeros(1, *self.input_size))


class ACB(Branched):
    """Asymmetric convolution blocks."""

    block = reparam.ACB()


class RepVGG(Branched):
    """RepVGG blocks."""

    block = reparam.RepVGG()


class DBB(Branched):
    """Diverse branch blocks."""

    block = reparam.DBB()
