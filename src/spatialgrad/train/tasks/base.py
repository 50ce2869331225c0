"""The interface of a task to the engine: data, network, loss and metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence, Sized
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from spatialgrad.data.batches import batch_bounds, eval_batches, train_batches
from spatialgrad.train.config.groups import TrainConfig
from spatialgrad.train.runs.predictions import Gallery
from spatialgrad.train.tasks.network import build_network

Sums = dict[str, Tensor]
"""Totals that add up over batches and processes; `Task.metrics` turns them into averages."""


class SizedIterable(Iterable[Any], Sized, Protocol):
    """Batches with a length; the same ones in every iteration."""


class Task(ABC):
    """A task with its data loaded.

    To add one, write a subclass and call `register_task`.

    Args:
        config: Of the training.
        device: Of the batches.
    """

    dataset: Any
    """Has a `description` and the splits `train` and `test`, which have lengths."""
    augmentation: Any
    """Of the training images, as the data set's batches take it; None for none."""
    headline: str
    """Name of the main metric; larger is better. It may depend on the data set."""

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        self.config, self.device = config, device

    @property
    def description(self) -> str:
        """Description of the data for reports."""
        return str(self.dataset.description)

    @property
    @abstractmethod
    def input_size(self) -> tuple[int, ...]:
        """Shape of one input, without the batch."""

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """Number of outputs of the network: of classes, or of joints."""

    @property
    def num_test(self) -> int:
        """Number of test images."""
        return len(self.dataset.test)

    @classmethod
    def create_network(
        cls, config: TrainConfig, *, num_classes: int, input_size: Sequence[int], pretrained: bool = False
    ) -> nn.Module:
        """A new network; a function of torch's seed and these values alone.

        A run is therefore loaded and exported without its data set, and without pre-trained weights.

        Args:
            config: Of the training.
            num_classes: As the task's.
            input_size: As the task's.
            pretrained: Load the pre-trained weights of the network's library.
        """
        return build_network(config.model, num_classes=num_classes, in_channels=input_size[0], pretrained=pretrained)

    def build_model(self) -> nn.Module:
        """A new network for the data set; a function of torch's seed."""
        return self.create_network(self.config, num_classes=self.num_classes, input_size=self.input_size)

    def build_pretrained(self) -> nn.Module:
        """As `build_model`, with the pre-trained weights of the network's library."""
        return self.create_network(
            self.config, num_classes=self.num_classes, input_size=self.input_size, pretrained=True
        )

    def steps_per_epoch(self, world_size: int) -> int:
        """Number of batches of each process in an epoch."""
        return len(self.cut_into_batches(world_size))

    def batch_size(self, number: int, world_size: int) -> int:
        """Number of images in one batch of an epoch, summed over all processes."""
        first, last = self.cut_into_batches(world_size)[number]
        return last - first

    def cut_into_batches(self, world_size: int) -> tuple[tuple[int, int], ...]:
        """The bounds (first, last + 1) of each batch of an epoch."""
        data = self.config.data
        return batch_bounds(len(self.dataset.train), data.batch_size, world_size=world_size, drop_last=data.drop_last)

    def train_batches(self, epoch: int, *, start: int = 0, rank: int = 0, world_size: int = 1) -> SizedIterable:
        """The batches of an epoch from number `start`; a function of seed, epoch and rank."""
        return train_batches(
            self.dataset,
            self.config.data.batch_size,
            seed=self.config.seed,
            epoch=epoch,
            augmentation=self.augmentation,
            start=start,
            drop_last=self.config.data.drop_last,
            **self._loading(rank, world_size),
        )

    def eval_batches(self, *, rank: int = 0, world_size: int = 1) -> SizedIterable:
        """The test batches: every image once, over all processes."""
        return eval_batches(self.dataset, self.eval_batch_size(world_size), **self._loading(rank, world_size))

    def eval_batch_size(self, world_size: int) -> int:
        """Number of images in a test batch, summed over all processes."""
        return self.config.data.batch_size

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, Sums]:
        """The mean loss of a training batch, and its totals without gradients."""

    @abstractmethod
    def evaluate(self, model: nn.Module, batch: Any) -> Sums:
        """The totals of a test batch."""

    @abstractmethod
    def metrics(self, sums: Sums) -> dict[str, float]:
        """Averages, including `loss` and the headline metric."""

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Run the network on the images of a batch."""
        return model(batch[0])

    def share(self, batch: Any, number: int, world_size: int) -> float | Tensor:
        """This process's share of the mean loss over all processes; by default its share of the images.

        Args:
            batch: Of this process.
            number: Of the batch within its epoch.
            world_size: Number of processes.
        """
        return self.images_in(batch) / self.batch_size(number, world_size)

    def examples(self, model: nn.Module, number: int) -> Gallery | None:
        """Pictures of a network's predictions for some test images; None if the task has none."""
        return None

    def images_in(self, batch: Any) -> int:
        """Number of images in a batch."""
        return len(batch[0])

    def _loading(self, rank: int, world_size: int) -> dict[str, Any]:
        workers = self.config.machine.workers
        return {"rank": rank, "world_size": world_size, "device": self.device, "workers": workers}


def total(value: Tensor) -> Tensor:
    """A number as a term of a total, in double precision where the device supports it."""
    value = value.detach()
    return value.float() if value.device.type == "mps" else value.double()


def add_(sums: Sums, more: Sums) -> None:
    """Add totals to totals, in place."""
    for name, value in more.items():
        sums[name] = sums[name] + value if name in sums else value
