"""Example predictions beside the ground truth: pictures in `examples/` of a run's folder."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from spatialgrad.train.errors import StorageError
from spatialgrad.train.jsonfiles import replacing, write_json
from spatialgrad.train.run import EXAMPLES, EXAMPLES_INDEX

NUM_EXAMPLES = 6
"""Number of examples of a finished run."""


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Pictures of one test image, to be shown side by side."""

    caption: str
    images: Mapping[str, Tensor]
    """Pictures by title, such as `image`, `truth` and `prediction`: uint8 of shape (3, height, width)."""


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Pictures of several test images, and the meaning of their colours."""

    examples: Sequence[Pictures] = ()
    legend: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    """Colours (red, green and blue from 0 to 255) by what they stand for."""


def write_examples(folder: Path, gallery: Gallery) -> None:
    """Write pictures to a run's folder, and then an index of them as JSON."""
    target = folder / EXAMPLES
    try:
        target.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write to {target}: {error.strerror or error}") from error
    entries = []
    for number, example in enumerate(gallery.examples):
        files = {title: f"{number:02d}-{title}.png" for title in example.images}
        for title, name in files.items():
            with replacing(target / name) as file:
                file.write(_png(example.images[title]))
        images = [{"title": title, "file": name} for title, name in files.items()]
        entries.append({"caption": example.caption, "images": images})
    legend = [{"name": name, "colour": "#{:02x}{:02x}{:02x}".format(*rgb)} for name, rgb in gallery.legend.items()]
    write_json(target / EXAMPLES_INDEX, {"examples": entries, "legend": legend})


def _png(picture: Tensor) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture.permute(1, 2, 0).cpu().contiguous().numpy()).save(file, "PNG")
    return file.getvalue()
