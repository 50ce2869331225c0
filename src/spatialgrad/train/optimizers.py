"""Optimizer and learning rate: their part of the config, and what is built from it.

PyTorch is imported when an optimizer is built: it takes seconds, and configs do without it.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from tyro.conf import arg

from spatialgrad.train.errors import ConfigError
from spatialgrad.train.flags import at_least, check_name, flag, parse_key_values, require, sorted_key_values
from spatialgrad.utils.text import UserCodeError, find_object, is_object_name

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

DEFAULT_LR = {
    "sgd": 0.1,
    "adadelta": 1.0,
    "adagrad": 0.01,
    "adam": 0.001,
    "adamax": 0.002,
    "nadam": 0.002,
    "radam": 0.001,
    "adamw": 0.001,
    "lion": 0.0001,
}
"""The optimizers with a short name and their default learning rates: PyTorch's, 0.1 for SGD, Lion's authors'."""
CLASSES = {
    "sgd": "SGD",
    "adadelta": "Adadelta",
    "adagrad": "Adagrad",
    "adam": "Adam",
    "adamax": "Adamax",
    "nadam": "NAdam",
    "radam": "RAdam",
    "adamw": "AdamW",
}
"""Their classes in `torch.optim`."""
RESERVED = {
    "params": "all parameters of the network are trained",
    "lr": "use --optimizer.lr",
    "weight_decay": "use --optimizer.weight-decay",
}
"""Arguments of optimizers that are not options, and what determines them."""
Schedule = Literal["cosine", "constant", "step", "poly"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """Optimizer; settings that are not listed are PyTorch's defaults."""

    name: Annotated[str, arg(metavar=f"{{{','.join(DEFAULT_LR)},MODULE:CLASS}}")] = "sgd"
    """An optimizer by name, or a class as package.module:Class. lion needs timm, unless PyTorch has it."""
    lr: float | None = None
    """Peak learning rate; by default 0.1 for sgd, 0.0001 for lion, and the class's own default for all others."""
    options: Annotated[tuple[str, ...], arg(metavar="[KEY=VALUE ...]")] = ()
    """Further arguments of the optimizer; Python literals, or else text: betas=(0.9,0.95) eps=1e-6."""
    momentum: float = 0.9
    """SGD momentum."""
    nesterov: bool = False
    """Use Nesterov momentum with sgd."""
    weight_decay: float = 5e-4
    """Weight decay of all parameters: an L2 penalty, or decoupled from the gradient with adamw and lion."""
    decay_norms_and_biases: bool = True
    """Apply weight decay to biases and normalization parameters too, not only to weights."""
    clip_norm: float | None = None
    """Maximum norm of the gradient, clipped before it is scaled. No clipping by default."""
    head_factor: float = 1.0
    """Factor on the learning rate of all parameters outside the backbone, for networks that have a backbone."""

    def __post_init__(self) -> None:
        if ":" not in self.name:
            check_name("--optimizer.name (a name, or package.module:Class)", self.name, DEFAULT_LR)
        form = "must be a name or package.module:Class"
        require(self.name in DEFAULT_LR or is_object_name(self.name), "optimizer.name", self.name, form)
        reserved = dict(RESERVED)
        if self.name == "sgd":
            reserved |= {"momentum": "use --optimizer.momentum", "nesterov": "use --optimizer.nesterov"}
        parse_key_values("optimizer.options", self.options, reserved=reserved)
        object.__setattr__(self, "options", sorted_key_values(self.options))
        valid = self.lr is None or (math.isfinite(self.lr) and self.lr > 0)
        require(valid, "optimizer.lr", self.lr, "must be positive")
        require(0 <= self.momentum < 1, "optimizer.momentum", self.momentum, "must be at least 0 and below 1")
        at_least(0, self, "optimizer", "weight_decay")
        require(self.clip_norm is None or self.clip_norm > 0, "optimizer.clip_norm", self.clip_norm, "must be positive")
        valid = math.isfinite(self.head_factor) and self.head_factor > 0
        require(valid, "optimizer.head_factor", self.head_factor, "must be positive")
        rule = "must be positive with --optimizer.nesterov"
        require(not self.nesterov or self.momentum > 0, "optimizer.momentum", self.momentum, rule)

    @property
    def learning_rate(self) -> float:
        """The peak learning rate: `lr`, or the optimizer's default."""
        return default_lr(self.name) if self.lr is None else self.lr

    @property
    def parsed_options(self) -> dict[str, Any]:
        """The values of the options by name."""
        return parse_key_values("optimizer.options", self.options)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    """Learning-rate schedule, applied at every step."""

    name: Schedule = "cosine"
    """cosine, poly: decay to min-lr. step: decay by gamma at each milestone."""
    warmup_epochs: float = 0.0
    """Epochs of linear warm-up from nearly 0."""
    min_lr: float = 0.0
    """Final learning rate of cosine and poly."""
    milestones: tuple[int, ...] = ()
    """Epochs at which step decays the learning rate."""
    gamma: float = 0.1
    """Decay factor at each milestone."""
    power: float = 0.9
    """Exponent of poly."""

    def __post_init__(self) -> None:
        check_name("schedule", self.name, get_args(Schedule))
        object.__setattr__(self, "milestones", tuple(self.milestones))
        at_least(0, self, "schedule", "warmup_epochs", "min_lr", "gamma", "power")
        valid = self.name != "step" or bool(self.milestones)
        require(valid, "schedule.milestones", self.milestones, "must not be empty with --schedule.name step")


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> Optimizer:
    """The optimizer of a config for a network's parameters.

    Parameters are grouped by learning rate (a group's `lr_factor` multiplies it) and by weight decay.

    Raises:
        ConfigError: If there is no such optimizer, or it does not take the settings.
    """
    kind, options = optimizer_class(config.name), config.parsed_options
    settings: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    if config.name == "sgd":
        settings |= {"momentum": config.momentum, "nesterov": config.nesterov}
    if not _accepts(kind, "weight_decay"):
        require(config.weight_decay == 0, "optimizer.weight_decay", config.weight_decay, f"must be 0 for {config.name}")
        del settings["weight_decay"]
    for option in options:
        if not _accepts(kind, option):
            arguments = list(inspect.signature(kind).parameters.values())[1:]  # without the parameters to optimize
            known = ", ".join(each.name for each in arguments if each.kind is not each.VAR_KEYWORD)
            raise ConfigError(f"{flag('optimizer.options')}: {config.name} takes no {option}; it takes {known}")
    try:
        optimizer: Optimizer = kind(_groups(config, model), **settings, **options)
        return optimizer
    except Exception as error:  # whatever a class of somebody else's raises
        raise ConfigError(f"{flag('optimizer.name')} {config.name} cannot be built: {error}") from error


def check_optimizer(config: OptimizerConfig) -> None:
    """Raise if an optimizer cannot train; one by name and without options is known to work.

    Raises:
        ConfigError: If it cannot be built or stepped.
    """
    import torch
    from torch import nn

    if config.name in CLASSES and not config.options:
        return
    with torch.random.fork_rng(devices=[]):
        scratch = nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))
        optimizer = build_optimizer(config, scratch)
        scratch(torch.randn(2, 2, 3, 3)).square().sum().backward()
        try:
            optimizer.step()
        except Exception as error:
            raise ConfigError(
                f"{flag('optimizer.name')} {config.name} cannot be stepped as step(), as this training does: "
                f"{str(error) or type(error).__name__}"
            ) from error


def learning_rate(config: ScheduleConfig, peak: float, step: int, *, steps_per_epoch: int, epochs: int) -> float:
    """The learning rate of a step: a function of the step, so that there is no scheduler state to save.

    Args:
        config: Which schedule.
        peak: The learning rate at the start, or after warm-up.
        step: Counted from 0, over all epochs.
        steps_per_epoch: Steps in an epoch.
        epochs: Of the whole training.
    """
    warmup, total = config.warmup_epochs * steps_per_epoch, epochs * steps_per_epoch
    if step < warmup:
        return peak * (step + 1) / (math.floor(warmup) + 1)
    if config.name == "constant":
        return peak
    if config.name == "step":
        epoch = step // steps_per_epoch
        return peak * config.gamma ** sum(epoch >= milestone for milestone in config.milestones)
    done = (step - warmup) / max(1.0, total - warmup)
    decay = (1 + math.cos(math.pi * done)) / 2 if config.name == "cosine" else (1 - done) ** config.power
    return config.min_lr + (peak - config.min_lr) * decay


def set_learning_rate_(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of every group, multiplied by the group's `lr_factor` if it has one."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_factor", 1.0)


def default_lr(name: str) -> float:
    """The learning rate of an optimizer if none is set: the class's own default for a class of the user's.

    Raises:
        ConfigError: If the class has no default.
    """
    if name in DEFAULT_LR:
        return DEFAULT_LR[name]
    default = getattr(inspect.signature(optimizer_class(name)).parameters.get("lr"), "default", None)
    if isinstance(default, bool) or not isinstance(default, int | float):
        raise ConfigError(f"{flag('optimizer.lr')} must be set: {name} has no default learning rate")
    return float(default)


def optimizer_class(name: str) -> Any:
    """The class of an optimizer.

    Raises:
        ConfigError: If its module cannot be imported, or has no such subclass of `torch.optim.Optimizer`.
    """
    from torch import optim

    if name in CLASSES or (name == "lion" and hasattr(optim, "Lion")):
        return getattr(optim, CLASSES.get(name, "Lion"))
    where = f"{flag('optimizer.name')} {name}"
    try:
        found = find_object("timm.optim:Lion" if name == "lion" else name)
    except UserCodeError as error:
        hint = "; lion needs a PyTorch that has it, or timm (pip install timm)" if name == "lion" else ""
        raise ConfigError(f"{where}: {error}{hint}") from error.__cause__
    if not (isinstance(found, type) and issubclass(found, optim.Optimizer)):
        raise ConfigError(f"{where}: it is not a torch.optim.Optimizer")
    return found


def _groups(config: OptimizerConfig, model: nn.Module) -> list[nn.Parameter] | list[dict[str, object]]:
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        factor = 1.0 if name.startswith("backbone.") else config.head_factor
        # Biases and the parameters of normalization layers are vectors.
        decays = config.decay_norms_and_biases or parameter.ndim > 1
        groups.setdefault((factor, config.weight_decay if decays else 0.0), []).append(parameter)
    if len(groups) == 1:
        return next(iter(groups.values()))
    return [
        {"params": parameters, "lr_factor": factor, "weight_decay": decay}
        for (factor, decay), parameters in groups.items()
    ]


def _accepts(kind: Any, argument: str) -> bool:
    parameters = inspect.signature(kind).parameters
    return argument in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())
