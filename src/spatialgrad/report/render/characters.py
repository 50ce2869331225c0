"""Characters that must not reach a page: names and messages of runs may hold anything."""

from __future__ import annotations

import re

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters but line breaks and tabs, and those that reverse the direction of a text."""


def without_controls(text: str) -> str:
    """A text with control characters replaced by U+FFFD."""
    return CONTROL.sub("\ufffd", text)
