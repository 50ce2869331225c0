"""The price of each method: time of an epoch, parameters and memory, side by side on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spatialgrad.data import Batches, ImageDataset, train_batches
from spatialgrad.models import create_model
from spatialgrad.reparam import ACB, DBB, Reparameterization, RepVGG, reparameterize_
from spatialgrad.sgs.scaler import SpatialGradientScaling

BRANCHED: dict[str, Reparameterization] = {"ACB": ACB(), "RepVGG": RepVGG(), "DBB": DBB()}
METHODS = ("plain", "SGS", *BRANCHED)
UPDATE_EVERY = 5
"""Epochs between two updates in the paper's schedule for CIFAR, over which their time is spread."""


@dataclass
class Price:
    """What training by one method costs."""

    method: str
    parameters: int
    memory_bytes: int
    """Parameters, gradients, momentum, and everything that the backward pass keeps for one batch."""
    epoch_seconds: list[float] = field(default_factory=list)
    update_seconds: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Median time of an epoch, with its share of the updates."""
        update = statistics.median(self.update_seconds) if self.update_seconds else 0.0
        return statistics.median(self.epoch_seconds) + update / UPDATE_EVERY

    def ratio(self, plain: Price) -> float:
        """Time as a multiple of plain training: the median over rounds, so that other work disturbs it less."""
        pairs = zip(self.epoch_seconds, plain.epoch_seconds, strict=True)
        update = statistics.median(self.update_seconds) / UPDATE_EVERY if self.update_seconds else 0.0
        return statistics.median((mine + update) / theirs for mine, theirs in pairs)


class Training:
    """A network of one method, for epochs that are measured.

    Args:
        method: plain, SGS, ACB, RepVGG or DBB.
        dataset: Images to train on.
        model: Name of the network.
        width: Its width.
        batch_size: Images per step.
    """

    def __init__(self, method: str, dataset: ImageDataset[Any], model: str, width: float, batch_size: int) -> None:
        torch.manual_seed(0)
        self.dataset, self.batch_size = dataset, batch_size
        self.model: nn.Module = create_model(
            model, num_classes=dataset.num_classes, width=width, in_channels=dataset.channels
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        if method in BRANCHED:
            reparameterize_(self.model, BRANCHED[method], optimizer=self.optimizer)
        self.sgs = SpatialGradientScaling(self.model, self.optimizer) if method == "SGS" else None
        self.scalings: list[dict[str, Tensor]] = []
        self.price = Price(
            method=method,
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            memory_bytes=training_bytes(self.model, *next(iter(self._batches(0)))),
        )

    def epoch(self, number: int, advance: Callable[[], None]) -> None:
        """Train for an epoch and measure it; from the second one on, the scalings are updated before it."""
        batches = self._batches(number)
        if self.sgs is not None and number > 0:
            before = time.perf_counter()
            self.scalings.append(self.sgs.update(batches, batches=2))
            self.price.update_seconds.append(time.perf_counter() - before)
        self.model.train()
        start = time.perf_counter()
        for images, labels in batches:
            self.optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(self.model(images), labels))
            self.optimizer.step()
            advance()
        self.price.epoch_seconds.append(time.perf_counter() - start)

    def _batches(self, epoch: int) -> Batches:
        return train_batches(
            self.dataset, self.batch_size, seed=0, epoch=epoch, augmentation=self.dataset.augmentation, drop_last=True
        )


def measure_prices(
    dataset: ImageDataset[Any],
    model: str,
    width: float,
    *,
    batch_size: int,
    rounds: int,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Training]:
    """Train an epoch of every method in each round, in rotating order, so that a machine that slows down favours none.

    Args:
        dataset: Images to train on.
        model: Name of the network.
        width: Its width.
        batch_size: Images per step.
        rounds: Number of epochs of each method.
        advance: Called after each step.
    """
    trainings = {name: Training(name, dataset, model, width, batch_size) for name in METHODS}
    names = list(trainings)
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            trainings[name].epoch(number, advance)
    return trainings


def training_bytes(model: nn.Module, images: Tensor, labels: Tensor) -> int:
    """Memory of a training step with momentum: three times the parameters, and what the backward pass keeps.

    It is counted and not measured, so that it is exact and does not depend on the allocator.
    """
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def remember(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        # Alive until it is counted: a storage that is freed may come back under the same address.
        loss = F.cross_entropy(model.train()(images), labels)
        total = sum(kept.values()) + 3 * sum(p.numel() * p.element_size() for p in model.parameters())
    del loss
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    return total
