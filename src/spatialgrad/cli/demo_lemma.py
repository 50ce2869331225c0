"""The Lemma at work: a branched and a scaled network stay equal while both train."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from spatialgrad.data import ImageDataset, train_batches
from spatialgrad.models import create_model
from spatialgrad.reparam import Branches, merge, reparameterize_
from spatialgrad.sgs.scaler import SpatialGradientScaling
from spatialgrad.sgs.scaling import scaling_from_masks
from spatialgrad.train.methods.lemma import MASKS, kernel_distance

BATCH_SIZE, LEARNING_RATE = 32, 0.05


@dataclass(frozen=True, kw_only=True)
class LemmaResult:
    """Three networks after the same steps: branched, scaled and plain."""

    steps: int
    first_loss: float
    """Of all three, at the first step."""
    branched_loss: float
    scaled_loss: float
    distance: float
    """Largest difference between the kernels of the branched and the scaled network, relative to the largest weight of
    each kernel."""
    unscaled_distance: float
    """The same for the network that was trained without scaling."""


def show_lemma(
    dataset: ImageDataset[Any], model: str, width: float, steps: int, advance: Callable[[], None] = lambda: None
) -> LemmaResult:
    """Train the three networks on the same batches, in double precision.

    Args:
        dataset: Images to train on.
        model: Name of the network.
        width: Its width.
        steps: Number of training steps, at most those of an epoch.
        advance: Called after each step.
    """
    torch.manual_seed(0)
    plain = create_model(model, num_classes=dataset.num_classes, width=width, in_channels=dataset.channels).double()
    scaled, branched = copy.deepcopy(plain), copy.deepcopy(plain)
    reparameterize_(branched, Branches(masks=MASKS))
    networks = {"plain": plain, "scaled": scaled, "branched": branched}
    optimizers = {
        name: torch.optim.SGD(network.parameters(), lr=LEARNING_RATE, momentum=0.9, weight_decay=5e-4)
        for name, network in networks.items()
    }
    G = scaling_from_masks(torch.tensor(MASKS, dtype=torch.float64), normalize=False)
    sgs = SpatialGradientScaling(scaled, optimizers["scaled"], measure=None, scalings=G)
    batches = iter(train_batches(dataset, BATCH_SIZE, seed=0, epoch=0))
    losses: list[dict[str, float]] = []
    for _ in range(steps):
        images, labels = next(batches)
        losses.append(
            {name: _step(network, optimizers[name], images.double(), labels) for name, network in networks.items()}
        )
        advance()
    sgs.detach()
    merged = merge(branched)
    return LemmaResult(
        steps=steps,
        first_loss=losses[0]["branched"],
        branched_loss=losses[-1]["branched"],
        scaled_loss=losses[-1]["scaled"],
        distance=kernel_distance(merged, scaled),
        unscaled_distance=kernel_distance(merged, plain),
    )


def _step(network: nn.Module, optimizer: Optimizer, images: Tensor, labels: Tensor) -> float:
    optimizer.zero_grad()
    loss = F.cross_entropy(network.train()(images), labels)
    torch.autograd.backward(loss)
    optimizer.step()
    return float(loss.detach())
