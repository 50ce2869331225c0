"""Numbers that users give: counts and sizes."""

from __future__ import annotations

import operator
import re
from typing import Any

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def is_count(value: Any) -> bool:
    """Return whether a value is an integer of at least 0.

    NumPy's integers count, and so do tensors that hold one; True and False do not.
    """
    try:
        return not isinstance(value, bool) and operator.index(value) >= 0
    except TypeError:
        return False


def bytes_of(size: int | str) -> int:
    """Return a number of bytes, given as such or in words: ``"256 MB"``, ``"1 GiB"``.

    Example:
        >>> bytes_of("256 MB")
        256000000
    """
    if is_count(size) and int(size) > 0:
        return int(size)
    match = (
        re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(|k|m|g|ki|mi|gi)b?\s*", size.lower()) if isinstance(size, str) else None
    )
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"Invalid memory: {size!r}; it must be a positive number of bytes, or one like '256 MB'.")
    return int(float(match[1]) * _UNITS[match[2]])
