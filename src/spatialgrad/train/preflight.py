"""Try what a run needs from outside once, so that a run that cannot train leaves no folder behind."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spatialgrad.models.external import describe_error
from spatialgrad.models.external import is_external as is_outside
from spatialgrad.sgs.apply_mode import resolve_apply
from spatialgrad.torch_utils.modules import quiet_evaluation
from spatialgrad.train.config.groups import TrainConfig
from spatialgrad.train.config.optimizer_names import USUAL_LR
from spatialgrad.train.config.validation import as_config_error, flag
from spatialgrad.train.engine.optim import build_optimizer
from spatialgrad.train.errors import ConfigError, TrainError
from spatialgrad.train.methods import METHODS
from spatialgrad.train.runs.checkpoint import has_checkpoint
from spatialgrad.train.runs.tensorboard import writer_class
from spatialgrad.train.tasks.base import Task


def check_network(config: TrainConfig, task: Task, world_size: int) -> None:
    """Raise if the network of a new run cannot be trained, before the run claims its folder.

    A network of the package is tried only if it has options; it is known to work otherwise.

    Args:
        config: Of the run.
        task: Of the run.
        world_size: Number of processes.

    Raises:
        ConfigError: If the network cannot be built, does not fit the images, or the method cannot be used with it.
    """
    outside = is_outside(config.model.name)
    if (outside or config.model.options) and not has_checkpoint(config.folder):
        torch.manual_seed(config.seed)
        model = task.build_pretrained() if config.model.pretrained else task.build_model()
        if outside:
            check_output(config, model, task.num_classes, task.input_size)
            _check_method(config, task, world_size, model)


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


def check_optimizer(config: TrainConfig) -> None:
    """Raise if the optimizer of a config cannot train, before a run claims its folder.

    One by name and without options is known to work.

    Raises:
        ConfigError: If it cannot be built or stepped, or the method cannot be used with it.
    """
    optimizer = config.optimizer
    if optimizer.name in USUAL_LR and optimizer.name != "lion" and not optimizer.options:
        return
    with torch.random.fork_rng(devices=[]):
        kernel = nn.Conv2d(2, 2, 3)
        scratch = nn.Sequential(kernel, nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))
        built = build_optimizer(optimizer, scratch)
        if config.method.name.startswith("sgs"):
            with as_config_error(f"{flag('scaling.apply')} {config.scaling.apply}: "):
                resolve_apply(config.scaling.apply, built, kernel.weight)
        scratch(torch.randn(2, 2, 3, 3)).square().sum().backward()
        try:
            built.step()
        except Exception as error:
            raise ConfigError(
                f"{flag('optimizer.name')} {optimizer.name} cannot be stepped as step(), as this training does: "
                f"{str(error) or type(error).__name__}"
            ) from error


def check_logging(config: TrainConfig) -> None:
    """Raise if what a config logs to is not installed, before a run claims its folder.

    Raises:
        ConfigError: If TensorBoard is missing.
    """
    if config.tensorboard:
        writer_class()


def _check_method(config: TrainConfig, task: Task, world_size: int, model: nn.Module) -> None:
    method = METHODS[config.method.name](config)
    method.input_size, method.steps_per_epoch = task.input_size, task.steps_per_epoch(world_size)
    try:
        method.prepare_(model)
        method.attach(model, build_optimizer(config.optimizer, model))
    except TrainError:
        raise
    except ValueError as error:
        raise ConfigError(f"--method {config.method.name} cannot train {config.model.name}: {error}") from error
