"""Joints as heat maps, and back.

Coordinates of joints are those of the image, in pixels with the centre of the top left one at (0, 0); a pixel of a map
stands for `stride` × `stride` pixels of the image, whose common centre is its place.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

SHIFT = 0.25
"""How far a joint lies from the highest pixel of its map, towards the higher one of that pixel's neighbours."""


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
    """Where the joints are: the highest pixel of each map, moved by a quarter of a pixel towards its higher neighbour.

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
    """Coordinates of the image as coordinates of a map."""
    return (joints + 0.5) / stride - 0.5


def from_map(places: Tensor, stride: int) -> Tensor:
    """Coordinates of a map as coordinates of the image."""
    return (places + 0.5) * stride - 0.5


def usual_sigma(side: int) -> float:
    """Two pixels for maps of 64 × 64, as usual, and in proportion for others; but never less than one."""
    return max(1.0, side / 32)


def _uphill(values: Tensor, at: Tensor) -> Tensor:
    """1 where the next value is larger than the one before, -1 where it is smaller; 0 at the ends."""
    padded = F.pad(values, (1, 1))
    before, after = (padded.gather(-1, (at + offset)[..., None]).squeeze(-1) for offset in (0, 2))
    inside = (at > 0) & (at < values.shape[-1] - 1)
    return torch.where(inside, torch.sign(after - before), torch.zeros_like(before)).float()
