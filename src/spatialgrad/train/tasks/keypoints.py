"""Joints of people: as heat maps and back, scored (PCK, PCKh), and drawn as skeletons.

Coordinates of joints are those of the image, in pixels with the centre of the top left one at (0, 0); a pixel of a map
covers `stride` × `stride` pixels of the image, and its position is their common centre.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from spatialgrad.data.pose import Skeleton

SHIFT = 0.25
"""Offset of a joint from the highest pixel of its map towards the higher neighbour, in pixels."""
LEGEND: dict[str, tuple[int, int, int]] = {"left": (64, 140, 255), "right": (255, 90, 60), "middle": (70, 220, 90)}
"""Colour of each side of the body: the person's left and right, not the picture's."""
SMALLEST = 256
"""Minimum height of pictures; smaller images are enlarged, so that lines stay thin."""


def encode(joints: Tensor, side: int, stride: int, sigma: float) -> Tensor:
    """A Gaussian of height 1 around every joint.

    Args:
        joints: Shape (..., 2), (x, y) in the image.
        side: Height and width of the maps.
        stride: Pixels of the image per pixel of a map.
        sigma: Standard deviation, in pixels of a map.

    Returns:
        Shape (..., side, side).
    """
    places = to_map(joints, stride)
    pixels = torch.arange(side, dtype=places.dtype, device=places.device)
    # A Gaussian is a product of one along x and one along y.
    along = torch.exp(-((pixels - places[..., None]) ** 2) / (2 * sigma**2))
    return along[..., 1, :, None] * along[..., 0, None, :]


def decode(maps: Tensor, stride: int) -> Tensor:
    """The positions of joints: the highest pixel of each map, moved a quarter of a pixel towards its higher neighbour.

    Args:
        maps: Shape (..., height, width).
        stride: Pixels of the image per pixel of a map.

    Returns:
        Shape (..., 2), (x, y) in the image.
    """
    width = maps.shape[-1]
    flat = maps.flatten(-2)
    highest = flat.argmax(-1)
    x, y = highest % width, highest // width
    rows = flat.gather(-1, y[..., None] * width + torch.arange(width, device=maps.device))
    columns = flat.gather(-1, x[..., None] + torch.arange(maps.shape[-2], device=maps.device) * width)
    places = torch.stack([x.float() + SHIFT * _uphill(rows, x), y.float() + SHIFT * _uphill(columns, y)], -1)
    return from_map(places, stride)


def to_map(joints: Tensor, stride: int) -> Tensor:
    """Convert image coordinates to map coordinates."""
    return (joints + 0.5) / stride - 0.5


def from_map(places: Tensor, stride: int) -> Tensor:
    """Convert map coordinates to image coordinates."""
    return (places + 0.5) * stride - 0.5


def default_sigma(side: int) -> float:
    """The default sigma: 2 for 64 × 64 maps, in proportion for other sizes, and at least 1."""
    return max(1.0, side / 32)


def count_right(
    predicted: Tensor, joints: Tensor, visible: Tensor, lengths: Tensor, threshold: float
) -> tuple[Tensor, Tensor]:
    """Count the correct predictions of each joint, and the people for whom it is scored.

    A prediction is correct if its distance from the truth is at most `threshold` times a length of the person: of the
    head for PCKh, of the torso for PCK.

    Args:
        predicted: Shape (people, joints, 2).
        joints: The truth, of the same shape.
        visible: Shape (people, joints): which joints are annotated.
        lengths: Shape (people,): people without a length (0) are not scored.
        threshold: Relative to the length.

    Returns:
        Two tensors of shape (joints,), int64.
    """
    distances = torch.linalg.vector_norm(predicted - joints, dim=-1)
    scored = visible & (lengths > 0)[:, None]
    right = scored & (distances <= threshold * lengths[:, None])
    return right.sum(0), scored.sum(0)


def mean_over_joints(right: Tensor, scored: Tensor, which: tuple[int, ...]) -> float:
    """The mean over joints of the share of correct predictions, without joints that are never scored; 0 if all are.

    Args:
        right: From `count_right`, summed over all people.
        scored: Likewise.
        which: Joints to include.
    """
    shares = [int(right[joint]) / int(scored[joint]) for joint in which if scored[joint]]
    return sum(shares) / len(shares) if shares else 0.0


def draw_skeleton(image: Tensor, joints: Tensor, visible: Tensor, skeleton: Skeleton) -> Tensor:
    """Draw the visible joints and the limbs between them.

    Args:
        image: uint8, shape (3, height, width).
        joints: Shape (joints, 2), (x, y) in the image.
        visible: Shape (joints,).
        skeleton: The limbs, and the side of each joint.

    Returns:
        uint8 of shape (3, height, width), enlarged by an integer factor if it is small.
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


def _uphill(values: Tensor, at: Tensor) -> Tensor:
    """1 where the next value is larger than the previous one, -1 where it is smaller; 0 at the ends."""
    padded = F.pad(values, (1, 1))
    before, after = (padded.gather(-1, (at + offset)[..., None]).squeeze(-1) for offset in (0, 2))
    inside = (at > 0) & (at < values.shape[-1] - 1)
    return torch.where(inside, torch.sign(after - before), torch.zeros_like(before)).float()


def _colour(skeleton: Skeleton, joints: Sequence[int]) -> tuple[int, int, int]:
    """The colour of the joints' side; a limb that connects both sides has that of the middle."""
    sides = {skeleton.side(joint) for joint in joints} - {"middle"}
    return LEGEND[sides.pop() if len(sides) == 1 else "middle"]
