"""The interface of a task to the training loop: data, network, loss and metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence, Sized
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from spatialgrad.data.batches import Loader, training_bounds
from spatialgrad.data.splits import D, hold_out, validation_split
from spatialgrad.models import ModelError, create_model
from spatialgrad.train.config import DataConfig, ModelConfig, TrainConfig
from spatialgrad.train.errors import ConfigError
from spatialgrad.train.examples import Gallery
from spatialgrad.train.flags import as_config_error, flag
from spatialgrad.utils.modules import quiet_evaluation
from spatialgrad.utils.text import describe_error

Sums = dict[str, Tensor]
"""Totals that add up over batches and processes; `Task.metrics` turns them into averages."""


class SizedIterable(Iterable[Any], Sized, Protocol):
    """Batches with a length; the same ones in every iteration."""


class Task(ABC):
    """A task with its data loaded.

    To add one, write a subclass and name it as `package.module:Class`.

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
        self._loader: Loader[Any] | None = None

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

    def build_model(self, *, pretrained: bool = False) -> nn.Module:
        """A new network for the data set; a function of torch's seed, or with the weights of the network's library."""
        return self.create_network(
            self.config, num_classes=self.num_classes, input_size=self.input_size, pretrained=pretrained
        )

    @property
    def preprocessing(self) -> dict[str, Any]:
        """What turns images into inputs and outputs into names: part of every export."""
        dataset = self.dataset
        return {"mean": list(dataset.mean), "std": list(dataset.std), "classes": list(self.class_names)}

    @property
    def class_names(self) -> Sequence[str]:
        """What the outputs of the network stand for."""
        return tuple(map(str, range(self.num_classes)))

    def steps_per_epoch(self, world_size: int) -> int:
        """Number of batches of each process in an epoch."""
        return len(self.cut_into_batches(world_size))

    def batch_size(self, number: int, world_size: int) -> int:
        """Number of images in one batch of an epoch, summed over all processes."""
        first, last = self.cut_into_batches(world_size)[number]
        return last - first

    def cut_into_batches(self, world_size: int) -> tuple[tuple[int, int], ...]:
        """The bounds (first, last + 1) of each batch of an epoch.

        Raises:
            ConfigError: If there is no batch, or it cannot be shared by all processes.
        """
        data, number = self.config.data, len(self.dataset.train)
        if min(number, self.num_test) < world_size:
            raise ConfigError(
                f"{self.description} has {number} training and {self.num_test} test images, too few for {world_size} "
                f"processes; use a smaller {flag('machine.devices')}, or a larger {flag('data.limit')} or "
                f"{flag('data.test_limit')}"
            )
        with as_config_error():
            return training_bounds(self.dataset, data.batch_size, world_size=world_size, drop_last=data.drop_last)

    def train_batches(self, epoch: int, *, start: int = 0, rank: int = 0, world_size: int = 1) -> SizedIterable:
        """The batches of an epoch from number `start`; a function of seed, epoch and rank."""
        return self._loader_for(rank, world_size).train_batches(
            self.config.data.batch_size,
            seed=self.config.seed,
            epoch=epoch,
            augmentation=self.augmentation,
            start=start,
            drop_last=self.config.data.drop_last,
        )

    def eval_batches(self, *, rank: int = 0, world_size: int = 1) -> SizedIterable:
        """The test batches: every image once, over all processes."""
        return self._loader_for(rank, world_size).eval_batches(self.eval_batch_size(world_size))

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

    def _loader_for(self, rank: int, world_size: int) -> Loader[Any]:
        """The loader of all batches: its workers start once."""
        if self._loader is None or (self._loader.rank, self._loader.world_size) != (rank, world_size):
            workers = self.config.machine.workers
            self._loader = Loader(self.dataset, rank=rank, world_size=world_size, device=self.device, workers=workers)
        return self._loader


def build_network(
    config: ModelConfig, *, num_classes: int | None, in_channels: int, pretrained: bool = False
) -> nn.Module:
    """Build the network that a config names.

    Args:
        config: Of the network.
        num_classes: Number of outputs; by default the network's own.
        in_channels: Number of channels of the images.
        pretrained: Load pre-trained weights. Not for a network whose weights are loaded from a checkpoint next.

    Raises:
        ConfigError: If it cannot be built; the message names the flag at fault.
    """
    options = config.parsed_options
    try:
        return create_model(
            config.name,
            num_classes=num_classes,
            width=config.width,
            in_channels=in_channels,
            pretrained=pretrained,
            **options,
        )
    except ModelError as error:
        typed = {
            "pretrained": flag("model.pretrained"),
            "options": " ".join((flag("model.options"), *config.options)),
        }
        where = typed.get(error.argument, f"{flag('model.name')} {config.name}")
        raise ConfigError(f"{where}: {error}") from error
    except (TypeError, ValueError) as error:
        if not options:
            raise
        # Of a network of the package, whose class does not take these options.
        given, reason = " ".join(config.options), describe_error(error)
        raise ConfigError(f"{flag('model.options')} {given}: {config.name} does not accept this ({reason})") from error


def check_output(config: TrainConfig, model: nn.Module, num_classes: int, input_size: tuple[int, ...]) -> None:
    """Raise unless a network returns one number per class for images of this size, in training and in evaluation.

    Statistics of the network's normalization may change.

    Args:
        config: Of the run.
        model: The network.
        num_classes: Number of outputs that it must have.
        input_size: Shape of one image.
    """
    name, shape = f"{flag('model.name')} {config.model.name}", " × ".join(map(str, input_size))
    images = torch.zeros(2, *input_size)
    try:
        with torch.no_grad():
            outputs = [model.train()(images)]
        with quiet_evaluation(model):
            outputs.append(model(images))
    except Exception as error:  # it is not our code
        raise ConfigError(
            f"{name} does not accept images of {shape} ({describe_error(error)}); try another {flag('data.image_size')}"
            f" or {flag('model.options')}"
        ) from error
    for output in outputs:
        if not isinstance(output, Tensor):
            raise ConfigError(f"{name} must return one tensor of logits, not {type(output).__name__}")
        if tuple(output.shape) != (2, num_classes):
            raise ConfigError(
                f"{name} must return {num_classes} numbers per image, one for each class; for 2 images of {shape}, its "
                f"output has the shape {tuple(output.shape)}"
            )


def total(value: Tensor) -> Tensor:
    """A number as a term of a total, in double precision where the device supports it."""
    value = value.detach()
    return value.float() if value.device.type == "mps" else value.double()


def add_(sums: Sums, more: Sums) -> None:
    """Add totals to totals, in place."""
    for name, value in more.items():
        sums[name] = sums[name] + value if name in sums else value


def subset_of(dataset: D, config: DataConfig) -> D:
    """Apply `validation`, `limit` and `test_limit` to a data set, and mention them in its description.

    Raises:
        ConfigError: If the data set has too few images.
    """
    if config.validation:
        with as_config_error():
            dataset = validation_split(dataset, config.validation, seed=config.split_seed)
    for split, field, limit in (("train", "limit", config.limit), ("test", "test_limit", config.test_limit)):
        images = getattr(dataset, split)
        if limit is not None and limit > len(images):
            raise ConfigError(f"{flag(f'data.{field}')} {limit}: {dataset.name} has only {len(images)} {split} images")
        if limit is not None and limit < len(images):
            _, chosen = hold_out(images, limit / len(images), seed=config.split_seed)
            description = f"{dataset.description}, {limit:,} {split} images"
            dataset = replace(dataset, description=description, **{split: images.select(chosen)})
    return dataset
