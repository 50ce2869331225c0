"""What is learned: the data, the network's ends, the loss and the metrics, as the engine sees them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sized
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from spatialgrad.data.batches import batch_bounds

if TYPE_CHECKING:
    from spatialgrad.train.config.groups import TrainConfig
    from spatialgrad.train.runs.predictions import Examples

Sums = dict[str, Tensor]
"""Totals that simply add up over batches and processes; `Task.metrics` turns them into averages."""


class SizedIterable(Iterable[Any], Sized, Protocol):
    """Batches with a length; the same ones each time they are iterated."""


class Task(ABC):
    """A task with its data loaded.

    To add one: a subclass in a file of its own, and its name in `TASKS`.

    Args:
        config: Of the training.
        device: Where batches go.
    """

    dataset: Any
    """With a `description`, and the splits `train` and `test`, which have lengths."""
    headline: str
    """The metric that a result is known by; larger is better. The data set may decide about it."""

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        self.config, self.device = config, device

    @property
    def description(self) -> str:
        """What a report calls the data."""
        return str(self.dataset.description)

    @property
    @abstractmethod
    def input_size(self) -> tuple[int, ...]:
        """Shape of one input, without the batch."""

    @property
    def num_test(self) -> int:
        """Test images."""
        return len(self.dataset.test)

    @abstractmethod
    def build_model(self) -> nn.Module:
        """A new network for these data; a function of torch's seed."""

    def steps_per_epoch(self, world_size: int) -> int:
        """Batches of each process in an epoch."""
        return len(self.cut_into_batches(world_size))

    def batch_size(self, number: int, world_size: int) -> int:
        """Images of one batch of an epoch, over all processes."""
        first, last = self.cut_into_batches(world_size)[number]
        return last - first

    def cut_into_batches(self, world_size: int) -> tuple[tuple[int, int], ...]:
        """The first and one past the last image of each batch of an epoch."""
        data = self.config.data
        return batch_bounds(len(self.dataset.train), data.batch_size, world_size=world_size, drop_last=data.drop_last)

    @abstractmethod
    def train_batches(self, epoch: int, *, start: int = 0, rank: int = 0, world_size: int = 1) -> SizedIterable:
        """An epoch's batches, from the one with the number `start`: a function of seed, epoch and rank."""

    @abstractmethod
    def eval_batches(self, *, rank: int = 0, world_size: int = 1) -> SizedIterable:
        """The test batches: every image once, over all processes."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Sums]:
        """The mean loss of a training batch, and its totals (without gradient)."""

    @abstractmethod
    def evaluate(self, model: nn.Module, batch: Any) -> Sums:
        """The totals of a test batch."""

    @abstractmethod
    def metrics(self, sums: Sums) -> dict[str, float]:
        """Averages, among them `loss` and the headline."""

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Run the network over a batch's images, whatever comes out."""
        return model(batch[0])

    def share(self, batch: Any, number: int, world_size: int) -> float | Tensor:
        """How much of the mean loss over all processes' batches together is this process's, by default by images.

        Args:
            batch: Of this process.
            number: Of the batch in its epoch.
            world_size: Number of processes.
        """
        return self.images_in(batch) / self.batch_size(number, world_size)

    def examples(self, model: nn.Module, number: int) -> Examples | None:
        """What a network in evaluation mode predicts for some test images, as pictures; None where there are none."""
        return None

    def images_in(self, batch: Any) -> int:
        """How many images a batch holds."""
        return len(batch[0])


def total(value: Tensor) -> Tensor:
    """A number as part of a total: exact enough for any epoch, where the device can do it."""
    value = value.detach()
    return value.float() if value.device.type == "mps" else value.double()


def add_(sums: Sums, more: Sums) -> None:
    """Add totals to totals, in place."""
    for name, value in more.items():
        sums[name] = sums[name] + value if name in sums else value
