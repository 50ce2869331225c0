"""Options of things that the config does not know, such as a network from outside: texts `key=value`."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from spatialgrad.train.config.validation import flag
from spatialgrad.train.errors import ConfigError

WORDS = {"true": True, "false": False, "none": None}
"""Values as other programs write them: as text, every one of them would be true."""


def parse_key_values(field: str, texts: Iterable[str], *, reserved: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The values by key; Python literals, and true, false and none, as such, all others as text.

    Args:
        field: Dotted name of the field that holds the texts.
        texts: Such as `dropout=0.5`, `widths=(64, 128)`, `norm=batch`.
        reserved: Keys that cannot be set, and why.

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
        values[key] = _literal(value)
    return values


def sorted_key_values(texts: Collection[str]) -> tuple[str, ...]:
    """The texts in the order of their keys: two orders are the same options."""
    return tuple(sorted(texts))


def _literal(text: str) -> Any:
    text = text.strip()
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
