"""Example predictions of a run, embedded so that the page needs no other file."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spatialgrad.report.reading import Complain, read_mapping
from spatialgrad.train.run import EXAMPLES, EXAMPLES_INDEX

INDEX = Path(EXAMPLES) / EXAMPLES_INDEX
PNG = b"\x89PNG\r\n\x1a\n"
LARGEST_FILE = 2_000_000


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One picture of an example."""

    title: str
    source: str
    """The PNG file as a data URI."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """An image, its ground truth and the prediction."""

    caption: str
    pictures: tuple[Picture, ...]


@dataclass(frozen=True, kw_only=True)
class Examples:
    """The examples of a run."""

    examples: tuple[Example, ...]
    legend: tuple[tuple[str, str], ...]
    """Class names and their colours (#rrggbb)."""


def read_examples(folder: Path, complain: Complain) -> Examples | None:
    """The examples in a run's folder, or None."""
    values = read_mapping(folder / INDEX, complain)
    if values is None:
        return None
    examples = []
    for entry in _mappings(values.get("examples")):
        pictures = tuple(
            Picture(title=str(image.get("title", "")), source=source)
            for image in _mappings(entry.get("images"))
            if (source := _embedded(folder / EXAMPLES, str(image.get("file", "")), complain))
        )
        if pictures:
            examples.append(Example(caption=str(entry.get("caption", "")), pictures=pictures))
    legend = tuple(
        (str(each.get("name", "")), colour)
        for each in _mappings(values.get("legend"))
        if _is_colour(colour := str(each.get("colour", "")))
    )
    return Examples(examples=tuple(examples), legend=legend)


def _embedded(folder: Path, name: str, complain: Complain) -> str | None:
    path = folder / name
    try:
        if not path.resolve().is_relative_to(folder.resolve()):
            complain(f"{INDEX} points to {name}, outside its folder; not read")
            return None
        content = path.read_bytes() if path.stat().st_size <= LARGEST_FILE and path.is_file() else b""
    except (OSError, RuntimeError) as error:  # the latter is what a link to itself raises
        complain(f"{name} in {INDEX} cannot be read ({getattr(error, 'strerror', None) or error})")
        return None
    if not content.startswith(PNG):
        complain(f"{name} in {INDEX} is not a PNG file of at most {LARGEST_FILE // 1_000_000} MB")
        return None
    return "data:image/png;base64," + base64.b64encode(content).decode()


def _mappings(values: Any) -> Sequence[dict[str, Any]]:
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []


def _is_colour(text: str) -> bool:
    return len(text) == 7 and text[0] == "#" and all(c in "0123456789abcdefABCDEF" for c in text[1:])
