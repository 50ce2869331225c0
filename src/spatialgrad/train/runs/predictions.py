"""Pictures of what a network predicts beside the truth: `examples/` in a run's folder, for people and for reports."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from spatialgrad.train.errors import StorageError
from spatialgrad.train.runs.checkpoint import replacing

FOLDER, INDEX = "examples", "examples.json"
NUMBER = 6
"""Examples that a finished run shows."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One test image as pictures side by side."""

    caption: str
    """What a report writes below them."""
    images: Mapping[str, Tensor]
    """Pictures by title, such as `image`, `truth` and `prediction`: uint8 of shape (3, height, width)."""


@dataclass(frozen=True, kw_only=True)
class Examples:
    """What a task has to show."""

    examples: Sequence[Example] = ()
    legend: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    """What each colour, red, green and blue from 0 to 255, stands for."""


def write_examples(folder: Path, shown: Examples) -> None:
    """Write the pictures into a run's folder, and an index of them as JSON.

    The index comes last, so that it names only what is there.
    """
    from spatialgrad.train.runs.folder import write_json  # which knows configs, which know tasks, which know this file

    target = folder / FOLDER
    try:
        target.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write to {target}: {error.strerror or error}") from error
    entries = []
    for number, example in enumerate(shown.examples):
        files = {title: f"{number:02d}-{title}.png" for title in example.images}
        for title, name in files.items():
            with replacing(target / name) as file:
                file.write(_png(example.images[title]))
        images = [{"title": title, "file": name} for title, name in files.items()]
        entries.append({"caption": example.caption, "images": images})
    legend = [{"name": name, "colour": "#{:02x}{:02x}{:02x}".format(*rgb)} for name, rgb in shown.legend.items()]
    write_json(target / INDEX, {"examples": entries, "legend": legend})


def _png(picture: Tensor) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture.permute(1, 2, 0).cpu().contiguous().numpy()).save(file, "PNG")
    return file.getvalue()
