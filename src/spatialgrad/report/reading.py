"""Read the JSON files of runs in any state: problems are named by file, and a report shows the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from spatialgrad.train.errors import DamagedFileError

LARGEST_OBJECT = 50_000_000
"""Bytes of the largest JSON object that is read."""
DEEPEST = 50
"""Largest nesting of a JSON object; printing a deeper one may exceed Python's stack."""
LARGEST_NUMBER = 1e100
"""Numbers beyond this are damage: their squares and sums would overflow."""

Complain = Callable[[str], None]
"""Called with a line that names a file and its problem."""


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        FileNotFoundError: If there is no such file.
        DamagedFileError: If it cannot be read, or is not an object.
    """
    try:
        if not path.is_file() and path.exists():  # reading a pipe would wait forever
            raise DamagedFileError(f"{path.name} is not a regular file")
        if path.stat().st_size > LARGEST_OBJECT:
            raise DamagedFileError(f"{path.name} is larger than {LARGEST_OBJECT // 1_000_000} MB")
        values = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, DamagedFileError):
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path.name} cannot be read ({short(error)})") from error
    if not isinstance(values, dict):
        raise DamagedFileError(f"{path.name} is not a JSON object")
    if _deeper_than(values, DEEPEST):
        raise DamagedFileError(f"{path.name} is nested more than {DEEPEST} deep")
    return values


def read_entries(path: Path, complain: Complain) -> Iterator[dict[str, Any]]:
    """The entries of a JSON Lines file, without damaged lines and a last line that is still being written.

    Args:
        path: The file; one that is missing has no entries.
        complain: Called at the end if lines are damaged.
    """
    damaged: list[int] = []
    try:
        if not path.is_file() and path.exists():
            complain(f"{path.name} is not a regular file")
            return
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                entry = _parsed(line)
                if entry is None:
                    damaged.append(number)
                else:
                    yield entry
    except FileNotFoundError:
        return
    except OSError as error:
        complain(f"{path.name} cannot be read ({short(error)})")
    if damaged:
        first = ", ".join(map(str, damaged[:3])) + (" …" if len(damaged) > 3 else "")
        complain(f"{path.name} is damaged in line {first}; skipped")


def last_entry(path: Path) -> dict[str, Any] | None:
    """The last entry of a JSON Lines file, of which nothing else is parsed; None if its last line is damaged."""
    newest = b""
    try:
        if path.is_file():
            with path.open("rb") as file:
                for line in file:
                    newest = line if line.endswith(b"\n") else newest
    except OSError:
        return None
    return _parsed(newest)


def number(values: Mapping[str, Any], name: str) -> float | None:
    """A number of reasonable size in an entry, or None."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # The comparison is exact for integers of any length, and False for NaN.
    return float(value) if -LARGEST_NUMBER < value < LARGEST_NUMBER else None


def whole(values: Mapping[str, Any], name: str) -> int | None:
    """A number of epochs or steps in an entry, or None."""
    value = number(values, name)
    return int(value) if value is not None and 0 <= value < 1e12 else None


def matrix(values: Any) -> tuple[tuple[float, ...], ...] | None:
    """A matrix of numbers of reasonable size; None if the values are anything else."""
    if not isinstance(values, list) or not values or not all(isinstance(row, list) and row for row in values):
        return None
    if len({len(row) for row in values}) != 1:
        return None
    try:
        rows = tuple(tuple(map(float, row)) for row in values)
    except (TypeError, ValueError, OverflowError):
        return None
    # False for NaN.
    return rows if all(-LARGEST_NUMBER < value < LARGEST_NUMBER for row in rows for value in row) else None


def short(error: BaseException) -> str:
    """An error in one line of limited length."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _deeper_than(values: Any, most: int) -> bool:
    level = [values]
    for _ in range(most):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return any(isinstance(each, dict | list) for each in level)


def read_mapping(path: Path, complain: Complain) -> dict[str, Any] | None:
    """The object in a JSON file; None if the file is missing or damaged."""
    try:
        return read_object(path)
    except FileNotFoundError:
        return None
    except DamagedFileError as error:
        complain(str(error))
        return None
