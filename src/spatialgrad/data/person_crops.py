"""People cropped from their images, and checks of where their joints are."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spatialgrad.data.errors import CorruptDataError
from spatialgrad.data.files.images import image_size, to_tensor
from spatialgrad.data.files.listing import FileList

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_ENLARGED = 32
"""Largest size of a canvas relative to its image; a larger one would only exhaust the memory."""
OUTSIDE_BY = 1.0
"""Pixels by which a joint may be outside its image and still count: annotations are rounded."""
ENLARGE = 1.4
"""Enlargement of squares around joints: feet, hands and hair extend beyond them."""


class AnnotationWarning(UserWarning):
    """Some annotations were ignored; the message names the files."""


def canvas_side(size: int) -> int:
    """Side of a canvas: a person's square with a margin of a quarter of its side."""
    return size + 2 * (size // 4)


def place_on_canvas(joints: Tensor, box: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Scale from the image to the canvas, and the joints on the canvas.

    Args:
        joints: Shape (joints, 2), in the image.
        box: Centre x, centre y and side of the person's square.
        size: Side of the square on the canvas.
    """
    factor = size / box[2]
    return factor, (joints - box[:2]) * factor + (canvas_side(size) - 1) / 2


def crop_person(image: Image, box: Sequence[float], size: int, name: str) -> Tensor:
    """A person's canvas, in the middle of which the square is resized to `size`; black beyond the image.

    Args:
        image: The whole image.
        box: Centre x, centre y and side of the person's square.
        size: Side of the square on the canvas.
        name: The name of the file, for errors.

    Raises:
        CorruptDataError: If the square is far too large for the image.
    """
    from PIL.Image import Resampling

    x, y, side = box
    reach = side / size * canvas_side(size)
    far = max(abs(x), abs(y))
    if not (0 < reach <= MAX_ENLARGED * max(image.size) and far <= MAX_ENLARGED * max(image.size)):
        raise CorruptDataError(
            f"{name} is {image.width}×{image.height} pixels, which is too small for a person of {side:.0f} pixels "
            f"at ({x:.0f}, {y:.0f})"
        )
    # Pillow counts from the corner of a pixel and crops whole pixels; resizing does the rest.
    left, top = x + 0.5 - reach / 2, y + 0.5 - reach / 2
    first = math.floor(left), math.floor(top)
    part = image.crop((*first, first[0] + math.ceil(reach) + 1, first[1] + math.ceil(reach) + 1))
    inner = (left - first[0], top - first[1])
    canvas = part.resize((canvas_side(size),) * 2, Resampling.BILINEAR, (*inner, inner[0] + reach, inner[1] + reach))
    return to_tensor(canvas)


def image_sizes(files: FileList) -> Tensor:
    """Width and height of every file, shape (files, 2), from the headers; each file is opened once."""
    known: dict[bytes, tuple[int, int]] = {}
    for index, name in enumerate(files.names):
        if name not in known:
            with files.open(index) as file:
                known[name] = image_size(file, files.name(index))
    return torch.tensor([known[name] for name in files.names], dtype=torch.float64).reshape(-1, 2)


def within_images(files: FileList, joints: Tensor, visible: Tensor, sizes: Tensor) -> Tensor:
    """Which of the visible joints are within their images; a warning names the files of the others.

    Args:
        files: The image of every person.
        joints: Shape (people, joints, 2).
        visible: Shape (people, joints).
        sizes: Width and height of each image.

    Raises:
        CorruptDataError: If the coordinates of a visible joint are not finite.
    """
    strange = (visible & ~joints.isfinite().all(2)).any(1)
    if strange.any():
        raise CorruptDataError(f"a joint in {files.name(int(strange.nonzero()[0]))} has non-finite coordinates")
    inside = ((joints >= -0.5 - OUTSIDE_BY) & (joints <= sizes[:, None] - 0.5 + OUTSIDE_BY)).all(2)
    outside = visible & ~inside
    if outside.any():
        people = outside.any(1).nonzero().flatten().tolist()
        names = sorted(set(files.select(people).relative_names()))
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        warnings.warn(
            f"{int(outside.sum())} joints are outside their images and are ignored: "
            f"{', '.join(names[:3])}{more} in {files.root}",
            AnnotationWarning,
            stacklevel=2,
        )
    return visible & inside


def boxes_around(joints: Tensor, visible: Tensor, sizes: Tensor) -> Tensor:
    """Squares around the visible joints, for data sets that do not annotate where a person is.

    Args:
        joints: Shape (people, joints, 2).
        visible: Shape (people, joints).
        sizes: Width and height of each image; with fewer than two visible joints, the square is the whole image.

    Returns:
        Shape (people, 3): centre x, centre y and side.
    """
    infinite = torch.full_like(joints, torch.inf)
    low = torch.where(visible[..., None], joints, infinite).amin(1)
    high = torch.where(visible[..., None], joints, -infinite).amax(1)
    side = (high - low).amax(1) * ENLARGE
    around_joints = torch.cat([(low + high) / 2, side[:, None]], 1)
    whole = torch.cat([(sizes - 1) / 2, sizes.amax(1, keepdim=True)], 1)
    return torch.where((side > 1)[:, None], around_joints, whole)
