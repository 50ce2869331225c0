"""Where people are in their images, and their squares cut out of them."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from spatialgrad.data.errors import CorruptDataError
from spatialgrad.data.files.image_files import ImageFiles
from spatialgrad.data.files.images import image_size

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_ENLARGED = 32
"""A canvas may be so many times as large as its image; what is larger is no person, but wants our memory."""
OUTSIDE_BY = 1.0
"""Pixels by which a joint may lie outside of its image and still count: annotations are rounded."""
ENLARGE = 1.4
"""Factor on squares around joints: feet, hands and hair reach beyond them."""


class AnnotationWarning(UserWarning):
    """A part of the annotations was left out; the message names the files."""


def canvas_side(size: int) -> int:
    """Side of a canvas: the square of a person with a quarter of its side around it."""
    return size + 2 * (size // 4)


def place_on_canvas(joints: Tensor, box: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The factor from the image to a canvas, and joints on the canvas.

    Args:
        joints: Shape (joints, 2), in the image.
        box: Centre x, centre y and side of the person's square.
        size: Side of the square on the canvas.
    """
    factor = size / box[2]
    return factor, (joints - box[:2]) * factor + (canvas_side(size) - 1) / 2


def cut_out(image: Image, box: Sequence[float], size: int, name: str) -> Tensor:
    """A person's square, resized to `size`, in the middle of its canvas; black beyond the image.

    Args:
        image: The whole image.
        box: Centre x, centre y and side of the square.
        size: Of the square in the result.
        name: Of the file, for errors.

    Raises:
        CorruptDataError: If the square is far too large for the image.
    """
    from PIL.Image import Resampling

    x, y, side = box
    reach = side / size * canvas_side(size)
    far = max(abs(x), abs(y))
    if not (0 < reach <= MAX_ENLARGED * max(image.size) and far <= MAX_ENLARGED * max(image.size)):
        raise CorruptDataError(
            f"{name} is {image.width}×{image.height}, which a person of {side:.0f} pixels around ({x:.0f}, {y:.0f}) "
            "does not fit"
        )
    # Pillow counts from the pixel's corner, and cuts whole pixels; the rest is left to the resizing.
    left, top = x + 0.5 - reach / 2, y + 0.5 - reach / 2
    first = math.floor(left), math.floor(top)
    part = image.crop((*first, first[0] + math.ceil(reach) + 1, first[1] + math.ceil(reach) + 1))
    inner = (left - first[0], top - first[1])
    canvas = part.resize((canvas_side(size),) * 2, Resampling.BILINEAR, (*inner, inner[0] + reach, inner[1] + reach))
    return torch.from_numpy(np.array(canvas)).permute(2, 0, 1)


def image_sizes(files: ImageFiles) -> Tensor:
    """Width and height of every file, shape (files, 2), from their headers; a file is opened once."""
    known: dict[bytes, tuple[int, int]] = {}
    for index, name in enumerate(files.names):
        if name not in known:
            with files.open(index) as file:
                known[name] = image_size(file, files.name(index))
    return torch.tensor([known[name] for name in files.names], dtype=torch.float64).reshape(-1, 2)


def within_images(files: ImageFiles, joints: Tensor, visible: Tensor, sizes: Tensor) -> Tensor:
    """Which of the visible joints lie within their images; the others are reported with their files.

    Args:
        files: Of every person.
        joints: Shape (people, joints, 2).
        visible: Shape (people, joints).
        sizes: Width and height of each image.

    Raises:
        CorruptDataError: If a visible joint is not a number.
    """
    strange = (visible & ~joints.isfinite().all(2)).any(1)
    if strange.any():
        raise CorruptDataError(f"a joint in {files.name(int(strange.nonzero()[0]))} is not a number")
    inside = ((joints >= -0.5 - OUTSIDE_BY) & (joints <= sizes[:, None] - 0.5 + OUTSIDE_BY)).all(2)
    outside = visible & ~inside
    if outside.any():
        people = outside.any(1).nonzero().flatten().tolist()
        names = sorted({os.fsdecode(bytes(files.names[person])) for person in people})
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        warnings.warn(
            f"{int(outside.sum())} joints lie outside of their images and are left out: "
            f"{', '.join(names[:3])}{more} in {files.root}",
            AnnotationWarning,
            stacklevel=2,
        )
    return visible & inside


def boxes_around(joints: Tensor, visible: Tensor, sizes: Tensor) -> Tensor:
    """Squares around the visible joints, for data sets that do not say where a person is.

    Args:
        joints: Shape (people, joints, 2).
        visible: Shape (people, joints).
        sizes: Width and height of each image; where no two joints are visible, the square holds the whole image.

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
