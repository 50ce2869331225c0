"""The names of optimizers: PyTorch's, Lion, and any class of the user's as `package.module:Class`."""

from __future__ import annotations

from spatialgrad.train.config.validation import check_name, flag
from spatialgrad.train.errors import ConfigError

USUAL_LR = {
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


def check_optimizer_name(name: str) -> None:
    """Raise unless a name is that of an optimizer, or has the form `package.module:Class`; nothing is imported."""
    module, separator, kind = name.partition(":")
    if not separator:
        check_name(f"{flag('optimizer.name')} (a name, or package.module:Class)", name, USUAL_LR)
    elif not (kind.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ConfigError(f"{flag('optimizer.name')} must be a name or package.module:Class, got {name!r}")
