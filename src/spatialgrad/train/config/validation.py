"""Checks of a config's values. An error names the flag, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from spatialgrad.torch_utils.names import did_you_mean
from spatialgrad.train.errors import ConfigError

SHORT_FLAGS = {
    "model.name": "--model",
    "data.name": "--dataset",
    "data.batch_size": "--batch-size",
    "method.name": "--method",
    "budget.epochs": "--epochs",
}
"""Fields that are set without their group."""


def flag(field: str) -> str:
    """The command-line flag of a field, such as `--data.test-limit` for `data.test_limit`."""
    return SHORT_FLAGS.get(field) or "--" + field.replace("_", "-")


def check_name(what: str, name: str, known: Iterable[str]) -> None:
    """Raise unless a name is known; the message suggests the closest one.

    Args:
        what: What the name is for, such as "optimizer".
        name: To look up.
        known: All valid names.
    """
    known = list(known)
    if name not in known:
        hint = did_you_mean(str(name), known, otherwise="choose from")
        raise ConfigError(f"unknown {what} {name!r}; {hint} ({', '.join(known)})")


@contextmanager
def as_config_error(prefix: str = "") -> Iterator[None]:
    """Turn a `ValueError` of another package into a `ConfigError`."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{prefix}{error}") from error


def require(valid: bool, field: str, value: Any, rule: str) -> None:
    """Raise unless a value is valid.

    Args:
        valid: Whether it is.
        field: Dotted name of the field.
        value: Of the field.
        rule: What the value must be: "must be positive".
    """
    if not valid:
        raise ConfigError(f"{flag(field)} {rule}, got {value!r}")


def at_least(least: int, config: Any, group: str, *names: str) -> None:
    """Raise if one of a group's fields is too small; None is always valid."""
    for name in names:
        value = getattr(config, name)
        require(value is None or value >= least, f"{group}.{name}", value, f"must be at least {least}")
