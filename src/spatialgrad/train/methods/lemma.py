"""The paper's Lemma 1 on a network: how far apart are the kernels of a branched and a scaled network after each step?

The training's own network is plain, and its gradients are multiplied by G, the sum of masks. Beside it, the method
trains a second network with one masked branch per mask in every 3×3 convolution, on the same batches, with the same
learning rates and the same dropout. By the Lemma, both learn the same kernels; what remains is rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spatialgrad.reparam import Branches, merge, reparameterize_
from spatialgrad.sgs.scaler import SpatialGradientScaling
from spatialgrad.sgs.scaling import scaling_from_masks
from spatialgrad.train.errors import DivergedError
from spatialgrad.train.methods.base import Method, Participation, StepContext
from spatialgrad.train.methods.branches import branch_reasons
from spatialgrad.train.optimizers import build_optimizer
from spatialgrad.train.run import DISTANCES
from spatialgrad.utils.modules import named_convolutions

MASKS = (
    ((1, 1, 1), (1, 1, 1), (1, 1, 1)),
    ((0, 0, 0), (1, 1, 1), (0, 0, 0)),
    ((0, 1, 0), (0, 1, 0), (0, 1, 0)),
    ((0, 0, 0), (0, 1, 0), (0, 0, 0)),
)
"""3×3, 1×3, 3×1 and 1×1."""
NUM_ENTRIES = 200
"""Approximate number of log entries of a whole training; each of them costs a merge."""


class Lemma(Method):
    """Trains a branched network beside the scaled one, and logs the distance between their kernels."""

    log_file = DISTANCES
    headline = "distance"
    single_process = True
    scales: ClassVar[bool] = True

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Build the branched network from the same weights, and scale the gradients of the other one."""
        self.model = model
        self.branched = copy.deepcopy(model).train()
        reparameterize_(self.branched, Branches(masks=MASKS))
        self.optimizer = build_optimizer(self.config.optimizer, self.branched)
        if self.scales:
            masks = torch.tensor(MASKS, dtype=next(model.parameters()).dtype)
            G = scaling_from_masks(masks, normalize=False)
            self.sgs = SpatialGradientScaling(model, optimizer, measure=None, scalings=G)

    def after_step(self, context: StepContext) -> Mapping[str, Any]:
        """Train the branched network on the same batch, and measure the distance now and then."""
        loss = context.train_companion(self.branched, self.optimizer)
        number, every = context.step + 1, max(1, context.num_steps // NUM_ENTRIES)
        if not loss.isfinite():
            raise DivergedError(f"the loss of the branched network became non-finite at step {number}")
        if number != 1 and number % every and number != context.num_steps:
            return {}
        return {**self.results(), "loss_scaled": float(context.loss), "loss_branched": float(loss)}

    def results(self) -> dict[str, float]:
        """The distance between the kernels of both networks."""
        return {"distance": kernel_distance(merge(self.branched), self.model)}

    def state_dict(self) -> dict[str, Any]:
        """The branched network and its optimizer."""
        return {"branched": self.branched.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the branched network and its optimizer."""
        self.branched.load_state_dict(state["branched"])
        self.optimizer.load_state_dict(state["optimizer"])

    @classmethod
    def participation(cls, model: nn.Module, input_size: tuple[int, ...]) -> Participation:
        """The convolutions that are compared."""
        branched, block = copy.deepcopy(model), Branches(masks=MASKS)
        reparameterize_(branched, block)
        return Participation(reasons=branch_reasons(model, branched, block), trained=model)


class UnscaledLemma(Lemma):
    """The control: the plain network without scaling, beside the same branched one."""

    scales = False


def kernel_distance(first: nn.Module, second: nn.Module) -> float:
    """The largest difference between the kernels of two networks, relative to the largest weight of each kernel."""
    others = named_convolutions(second)
    distances: list[Tensor] = []
    for name, conv in named_convolutions(first).items():
        mine, other = conv.weight.detach().double(), others[name].weight.detach().double()
        distances.append((mine - other).abs().max() / other.abs().max())
    return float(torch.stack(distances).max())
