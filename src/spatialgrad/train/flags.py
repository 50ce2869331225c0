"""Checks of a config's values; an error names the flag, the value and what is allowed."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from spatialgrad.train.errors import ConfigError
from spatialgrad.utils.text import did_you_mean, find_object, is_object_name

SHORT_FLAGS = {
    "model.name": "--model",
    "data.name": "--dataset",
    "data.batch_size": "--batch-size",
    "method.name": "--method",
    "budget.epochs": "--epochs",
}
"""Fields that are set without their group."""
WORDS = {"true": True, "false": False, "none": None}
"""Values as other programs write them: as text, every one of them would be true."""


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


def check_class_name(what: str, name: str, known: Iterable[str]) -> None:
    """Raise unless a name is known or has the form `package.module:Class`; nothing is imported."""
    if not is_object_name(name):
        check_name(what, name, known)


@contextmanager
def as_config_error(prefix: str = "") -> Iterator[None]:
    """Turn a `ValueError` of another package into a `ConfigError`."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"{prefix}{error}") from error


def find_class(field: str, name: str, kind: type) -> Any:
    """Return a class of the user's, given as `package.module:Class`.

    Args:
        field: Dotted name of the field that holds the name.
        name: Of that form.
        kind: What it must be a subclass of.
    """
    with as_config_error(f"{flag(field)}: "):
        found = find_object(name)
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise ConfigError(f"{flag(field)} {name}: it is not a subclass of spatialgrad.train.{kind.__name__}")
    return found


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


def parse_key_values(field: str, texts: Iterable[str], *, reserved: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Options of something that the config does not know, such as an external network, given as texts `key=value`.

    Args:
        field: Dotted name of the field that holds the texts.
        texts: Such as `dropout=0.5`, `widths=(64, 128)`, `norm=batch`.
        reserved: Keys that cannot be set, and why.

    Returns:
        The values by key: Python literals, and true, false and none, as such, all others as text.

    Raises:
        ConfigError: If a text has another form, or a key is reserved or occurs twice.
    """
    values: dict[str, Any] = {}
    for text in texts:
        key, separator, value = text.partition("=") if isinstance(text, str) else ("", "", "")
        if not separator or not key.isidentifier():
            raise ConfigError(f"{flag(field)} takes key=value, such as dropout=0.5, got {text!r}")
        if reserved is not None and key in reserved:
            raise ConfigError(f"{flag(field)}: {key} cannot be set here; {reserved[key]}")
        if key in values:
            raise ConfigError(f"{flag(field)}: {key} occurs twice")
        values[key] = _literal(value.strip())
    return values


def sorted_key_values(texts: Collection[str]) -> tuple[str, ...]:
    """The texts in the order of their keys: two orders are the same options."""
    return tuple(sorted(texts))


def _literal(text: str) -> Any:
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
