"""The groups of a config that say how weights are optimized: optimizer, learning rate and its schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from tyro.conf import arg

from spatialgrad.train.config.key_values import parse_key_values, sorted_key_values
from spatialgrad.train.config.optimizer_names import USUAL_LR, check_optimizer_name
from spatialgrad.train.config.validation import at_least, check_name, require

OPTIMIZER_FLAGS = {
    "params": "all parameters of the network are trained",
    "lr": "use --optimizer.lr",
    "weight_decay": "use --optimizer.weight-decay",
}
"""Arguments of optimizers that are not options, and what determines them."""

Schedule = Literal["cosine", "constant", "step", "poly"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """Optimizer; settings that are not listed are PyTorch's defaults."""

    name: Annotated[str, arg(metavar=f"{{{','.join(USUAL_LR)},MODULE:CLASS}}")] = "sgd"
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
        check_optimizer_name(self.name)
        reserved = dict(OPTIMIZER_FLAGS)
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
        if self.lr is not None:
            return self.lr
        # PyTorch takes seconds to import.
        from spatialgrad.train.config.optimizers import usual_lr

        return usual_lr(self.name)

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
