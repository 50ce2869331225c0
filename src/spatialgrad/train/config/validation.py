"""How a config refuses a value: with its name, the value and the way out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from spatialgrad.torch_utils.names import did_you_mean
from spatialgrad.train.errors import ConfigError


def check_name(what: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that is not known, and suggest the nearest one."""
    known = list(known)
    if name not in known:
        hint = did_you_mean(str(name), known, otherwise="choose from")
        raise ConfigError(f"unknown {what} {name!r}; {hint} ({', '.join(known)})")


def explained(check: Callable[[str], Any], name: str) -> None:
    """Look a name up; what is wrong with it is wrong with the config."""
    try:
        check(name)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def require(right: bool, name: str, value: Any, what: str) -> None:
    """Refuse a value, and say what it must be."""
    if not right:
        raise ConfigError(f"invalid {name}: {value!r} {what}")


def at_least(least: int, config: Any, group: str, *names: str) -> None:
    """Refuse values of a group of fields that are too small; None is not a value."""
    for name in names:
        value = getattr(config, name)
        require(value is None or value >= least, f"{group}.{name}", value, f"must be at least {least}")
