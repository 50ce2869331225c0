"""Configs to and from JSON, and the differences between two."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from spatialgrad.train.config.groups import TrainConfig
from spatialgrad.train.config.validation import check_name
from spatialgrad.train.errors import ConfigError

FREE = (
    "out",
    "tensorboard",
    "data.root",
    "budget.checkpoint_seconds",
    "budget.checkpoint_steps",
    "machine.accelerator",
    "machine.devices",
    "machine.nodes",
    "machine.strategy",
    "machine.workers",
    "machine.threads",
)
"""Fields that may differ when a run is resumed: they determine where it runs, not what it computes."""

C = TypeVar("C")


def to_dict(config: Any) -> dict[str, Any]:
    """A config as JSON values."""
    return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def from_dict(values: Mapping[str, Any], kind: type[C] = TrainConfig, prefix: str = "") -> C:  # type: ignore[assignment]
    """The inverse of `to_dict`; missing fields get their defaults.

    Raises:
        ConfigError: If a field is unknown or its value is invalid.
    """
    hints = typing.get_type_hints(kind)
    known = [f"{prefix}{field.name}" for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    found: dict[str, Any] = {}
    for name, value in values.items():
        check_name("field", f"{prefix}{name}", known)
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, Mapping):
                raise ConfigError(f"invalid {prefix}{name}: {value!r} is not a group of fields")
            found[name] = from_dict(value, typing.cast(type, hint), f"{prefix}{name}.")
        else:
            found[name] = _restored(value, hint, f"{prefix}{name}")
    return kind(**found)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def differences(first: TrainConfig, second: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """The fields that affect the result and differ, by dotted name, with both values."""
    a, b = flatten(to_dict(first)), flatten(to_dict(second))
    return {name: (a[name], b[name]) for name in a if a[name] != b[name] and name not in FREE}


def with_values(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """A config with other values for some fields.

    Args:
        config: Everything else is taken from it.
        values: By dotted field, such as `{"scaling.alpha": 1.25}`.

    Raises:
        ConfigError: If a field is unknown or its value is invalid.
    """
    groups = [
        field.name for field in dataclasses.fields(config) if dataclasses.is_dataclass(getattr(config, field.name))
    ]
    for dotted, value in values.items():
        group, _, name = dotted.rpartition(".")
        check_name("group", group, groups)
        part = getattr(config, group)
        check_name("field", dotted, [f"{group}.{field.name}" for field in dataclasses.fields(part)])
        config = dataclasses.replace(config, **{group: dataclasses.replace(part, **{name: value})})
    return config


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _restored(value: Any, hint: Any, name: str) -> Any:
    """A JSON value as the annotated type of its field."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        fitting = [option for option in options if _fits(value, option)]
        if fitting:
            return _restored(value, fitting[0], name)
    elif _fits(value, hint):
        if hint is Path:
            return Path(value)
        if hint is float:
            return float(value)
        return tuple(value) if origin is tuple else value
    raise ConfigError(f"invalid {name}: {value!r} is not of type {getattr(hint, '__name__', hint)}")


def _fits(value: Any, hint: Any) -> bool:
    if typing.get_origin(hint) is typing.Literal:
        return value in typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return isinstance(value, list | tuple)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is Path:
        return isinstance(value, str)
    return isinstance(value, hint)
