"""Read the files of a run in any state: problems are reported by file name, never raised."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spatialgrad.studies.record import best_file

Complain = Callable[[str], None]
"""Called with a line that names a file and its problem."""


def read_mapping(path: Path, complain: Complain) -> dict[str, Any] | None:
    """The object in a JSON file; None if the file is missing or damaged."""
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        complain(f"{path.name} cannot be read ({_short(error)})")
        return None
    if not isinstance(values, dict):
        complain(f"{path.name} is not a JSON object")
        return None
    return values


def read_entries(path: Path, complain: Complain) -> list[dict[str, Any]]:
    """The entries of a JSON Lines file, without damaged lines and a last line that is still being written."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        complain(f"{path.name} cannot be read ({_short(error)})")
        return []
    entries: list[dict[str, Any]] = []
    damaged: list[int] = []
    for number, line in enumerate(text[: text.rfind("\n") + 1].split("\n")[:-1], 1):
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if isinstance(entry, dict):
            entries.append(entry)
        else:
            damaged.append(number)
    if damaged:
        first = ", ".join(map(str, damaged[:3])) + (" …" if len(damaged) > 3 else "")
        complain(f"{path.name} is damaged in line {first}; skipped")
    return entries


def read_best(study: Path, search: str) -> Mapping[str, Any] | None:
    """The values that a search has chosen, or None."""
    path = best_file(study, search)
    inside = path.resolve().is_relative_to(study.resolve())
    values = (read_mapping(path, lambda text: None) or {}).get("values") if inside else None
    return values if isinstance(values, dict) else None


def number(values: Mapping[str, Any], name: str) -> float | None:
    """A finite number in an entry, or None."""
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def matrix(values: Any) -> tuple[tuple[float, ...], ...] | None:
    """A matrix of finite numbers; None if the values are anything else."""
    if not isinstance(values, list) or not values or not all(isinstance(row, list) and row for row in values):
        return None
    if len({len(row) for row in values}) != 1:
        return None
    try:
        rows = tuple(tuple(float(value) for value in row) for row in values)
    except (TypeError, ValueError):
        return None
    return rows if all(math.isfinite(value) for row in rows for value in row) else None


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
