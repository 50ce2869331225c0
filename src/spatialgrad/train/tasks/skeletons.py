"""Skeletons drawn on images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from spatialgrad.data.pose import Skeleton

LEGEND: dict[str, tuple[int, int, int]] = {"left": (64, 140, 255), "right": (255, 90, 60), "middle": (70, 220, 90)}
"""Colour of each side of the body: of the person's left and right, not the picture's."""
SMALLEST = 256
"""Pictures are enlarged to at least this height, so that lines stay thin."""


def draw_skeleton(image: Tensor, joints: Tensor, visible: Tensor, skeleton: Skeleton) -> Tensor:
    """Draw the visible joints and the limbs between them.

    Args:
        image: uint8, shape (3, height, width).
        joints: Shape (joints, 2), (x, y) in the image.
        visible: Shape (joints,).
        skeleton: Says which joints a limb connects, and on which side they are.

    Returns:
        uint8 of shape (3, height, width), enlarged by a whole number if it is small.
    """
    from PIL import Image, ImageDraw

    height, width = image.shape[1:]
    factor = max(1, -(-SMALLEST // height))
    picture = Image.fromarray(image.permute(1, 2, 0).cpu().contiguous().numpy())
    picture = picture.resize((width * factor, height * factor), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(picture)
    places = [tuple(((joint + 0.5) * factor - 0.5).tolist()) for joint in joints.cpu().double()]
    thickness = max(1, picture.height // 85)
    for first, second in skeleton.limbs:
        if visible[first] and visible[second]:
            draw.line([places[first], places[second]], fill=_colour(skeleton, (first, second)), width=thickness)
    for joint, (x, y) in enumerate(places):
        if visible[joint]:
            box = (x - thickness, y - thickness, x + thickness, y + thickness)
            draw.ellipse(box, fill=_colour(skeleton, (joint,)), outline=(0, 0, 0))
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def _colour(skeleton: Skeleton, joints: Sequence[int]) -> tuple[int, int, int]:
    """That of the side which a joint of a limb is on; a limb from one side to the other is in the middle."""
    sides = {skeleton.side(joint) for joint in joints} - {"middle"}
    return LEGEND[sides.pop() if len(sides) == 1 else "middle"]
