"""Augmentation that moves an image and its targets together: one affine matrix per image for pixels, masks and points.

Its three steps can be used separately: draw random numbers (`draw_move`), compute a matrix from them (`crop_matrix`,
`affine`), and apply the matrix to pixels (`warp_image`), masks (`warp_mask`) or coordinates (`move_points`).

Coordinates are (x, y) in pixels; the centre of the top left pixel is (0, 0). Matrices are 3×3 and float64, and map
points of the original to points of the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from spatialgrad.data.rng import generator_for

Size = tuple[int, int]
"""Height and width."""


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Augmentation of images and masks for segmentation; by default only random crops."""

    scale: tuple[float, float] = (1.0, 1.0)
    """Smallest and largest scale factor."""
    rotation: float = 0.0
    """Largest angle in degrees, in either direction."""
    rotation_share: float = 0.5
    """Share of the images that are rotated."""
    flip: bool = False
    """Mirror half of the images horizontally."""
    random_crop: bool = True
    """Crop at a random position where the image is larger than the crop; if False, at the centre."""

    def __post_init__(self) -> None:
        low, high = self.scale
        if not 0 < low <= high:
            raise ValueError(f"Geometry.scale must be 0 < low <= high, got ({low}, {high})")
        if not 0 <= self.rotation <= 180:
            raise ValueError(f"Geometry.rotation must be 0 to 180 degrees, got {self.rotation}")
        if not 0 <= self.rotation_share <= 1:
            raise ValueError(f"Geometry.rotation_share must be 0 to 1, got {self.rotation_share}")


STILL = Geometry(random_crop=False)
"""No augmentation: crops from the centre."""


@dataclass(frozen=True, kw_only=True)
class Move:
    """The augmentation of one image."""

    scale: float
    angle: float
    """Degrees, clockwise on the screen, where the y axis points down."""
    flip: bool
    row: float
    """Position of the crop, from 0 at the top to 1 at the bottom."""
    column: float
    """The same from left to right."""


def draw_move(geometry: Geometry, *, seed: int, epoch: int, index: int) -> Move:
    """Draw the augmentation of image `index` in an epoch, which depends on the arguments alone.

    The draws do not depend on the geometry: two runs that differ only in rotation see the same crops and flips.
    """
    numbers = torch.rand(6, generator=generator_for("geometry", seed, epoch, index), dtype=torch.float64).tolist()
    u_scale, u_turned, u_angle, u_flip, row, column = numbers
    low, high = geometry.scale
    angle = (2 * u_angle - 1) * geometry.rotation if u_turned < geometry.rotation_share else 0.0
    if not geometry.random_crop:
        row = column = 0.5
    return Move(
        scale=low + (high - low) * u_scale, angle=angle, flip=geometry.flip and u_flip < 0.5, row=row, column=column
    )


def crop_matrix(move: Move, size: Size, crop: Size) -> Tensor:
    """The matrix that scales, rotates and mirrors an image about its centre and crops the result.

    Where the scaled image is larger than the crop, `row` and `column` position the crop; where it is smaller, the image
    is centred.

    Args:
        move: Scale, rotation, flip and position.
        size: Height and width of the image.
        crop: Height and width of the result.
    """
    offsets = []
    for length, wanted, share in zip(size, crop, (move.row, move.column), strict=True):
        over = length * move.scale - wanted
        # Whole pixels: without scaling and rotation, a crop is an exact copy.
        choices = math.floor(over) + 1
        offsets.append(min(math.floor(share * choices), choices - 1) if over >= 0 else math.ceil(over / 2))
    (top, left), (height, width) = offsets, size
    source = ((width - 1) / 2, (height - 1) / 2)
    target = (width * move.scale / 2 - 0.5 - left, height * move.scale / 2 - 0.5 - top)
    return affine(source=source, target=target, scale=move.scale, angle=move.angle, flip=move.flip)


def affine(
    *, source: tuple[float, float], target: tuple[float, float], scale: float, angle: float = 0.0, flip: bool = False
) -> Tensor:
    """The matrix that mirrors, scales and rotates about the point `source`, and moves it to `target`.

    Args:
        source: (x, y) in the original.
        target: (x, y) in the result.
        scale: Scale factor.
        angle: Degrees, clockwise on the screen.
        flip: Whether to mirror horizontally before rotating.
    """
    cosine, sine = scale * math.cos(math.radians(angle)), scale * math.sin(math.radians(angle))
    sign = -1.0 if flip else 1.0
    a, b, c, d = sign * cosine, -sine, sign * sine, cosine
    (x, y), (to_x, to_y) = source, target
    rows = [[a, b, to_x - a * x - b * y], [c, d, to_y - c * x - d * y], [0.0, 0.0, 1.0]]
    return torch.tensor(rows, dtype=torch.float64)


def warp_image(image: Tensor, matrix: Tensor, size: Size, fill: tuple[float, ...]) -> Tensor:
    """Warp an image, with bilinear interpolation.

    Args:
        image: Shape (channels, height, width), uint8.
        matrix: From `crop_matrix` or `affine`.
        size: Height and width of the result.
        fill: Value of each channel, from 0 to 255, outside the original.

    Returns:
        uint8 of shape (channels, *size).
    """
    colour = torch.tensor(fill, dtype=torch.float32)[:, None, None]
    # Outside the original, the difference from the colour is 0.
    moved = _warp(image.to(torch.float32) - colour, matrix, size, "bilinear")
    return (moved + colour).round_().clamp_(0, 255).to(torch.uint8)


def warp_mask(mask: Tensor, matrix: Tensor, size: Size, ignore: int) -> Tensor:
    """Warp a mask; each pixel of the result takes the class of the nearest pixel.

    Args:
        mask: Shape (height, width), uint8.
        matrix: From `crop_matrix` or `affine`.
        size: Height and width of the result.
        ignore: The class outside the original.

    Returns:
        uint8 of shape `size`.
    """
    # Classes plus one, so that 0 is only outside.
    moved = _warp(mask.to(torch.float32)[None] + 1, matrix, size, "nearest")[0].to(torch.int16)
    return torch.where(moved == 0, ignore, moved - 1).to(torch.uint8)


def move_points(points: Tensor, matrix: Tensor) -> Tensor:
    """Move points.

    Args:
        points: Shape (..., 2), (x, y).
        matrix: From `crop_matrix` or `affine`.

    Returns:
        The same shape and dtype.
    """
    moved = points.to(torch.float64) @ matrix[:2, :2].T + matrix[:2, 2]
    return moved.to(points.dtype)


def _warp(pixels: Tensor, matrix: Tensor, size: Size, mode: str) -> Tensor:
    """Take each pixel of the result from where the inverse of the matrix leads; 0 outside the original."""
    theta = _to_unit(pixels.shape[-2:]) @ torch.linalg.inv(matrix) @ torch.linalg.inv(_to_unit(size))
    rows = theta[None, :2].to(pixels.dtype)
    grid = F.affine_grid(rows, [1, 1, *size], align_corners=False)
    return F.grid_sample(pixels[None], grid, mode=mode, padding_mode="zeros", align_corners=False)[0]


def _to_unit(size: Sequence[int]) -> Tensor:
    """From pixels to the coordinates of `grid_sample`, in which the borders of an image are at -1 and 1."""
    height, width = size
    rows = [[2 / width, 0.0, 1 / width - 1], [0.0, 2 / height, 1 / height - 1], [0.0, 0.0, 1.0]]
    return torch.tensor(rows, dtype=torch.float64)
