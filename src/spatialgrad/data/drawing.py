"""Simple shapes with smooth edges, drawn by numpy: what the generated data sets are made of.

Coordinates are (x, y) in pixels, and the centre of the top left pixel is (0, 0). A shape is its coverage of every
pixel, from 0 to 1, so that shapes can be joined with `np.maximum` and painted in any colour.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Point = tuple[float, float]


def disc(size: tuple[int, int], centre: Point, radius: float) -> np.ndarray:
    """A filled circle.

    Args:
        size: Height and width of the picture.
        centre: Of the circle.
        radius: In pixels.
    """
    x, y = pixels(size)
    return _edge(radius - np.hypot(x - centre[0], y - centre[1]))


def line(size: tuple[int, int], start: Point, end: Point, radius: float) -> np.ndarray:
    """A thick line with round ends.

    Args:
        size: Height and width of the picture.
        start: First point.
        end: Last point.
        radius: Half of its thickness.
    """
    x, y = pixels(size)
    across, down = end[0] - start[0], end[1] - start[1]
    length = across**2 + down**2
    along = ((x - start[0]) * across + (y - start[1]) * down) / length if length else np.zeros(size)
    along = np.clip(along, 0, 1)
    return _edge(radius - np.hypot(x - start[0] - along * across, y - start[1] - along * down))


def polygon(size: tuple[int, int], corners: Sequence[Point]) -> np.ndarray:
    """A filled convex polygon.

    Args:
        size: Height and width of the picture.
        corners: Clockwise as seen in the picture.
    """
    x, y = pixels(size)
    inside = np.full(size, np.inf)
    for (left, top), (right, bottom) in zip(corners, [*corners[1:], corners[0]], strict=True):
        across, down = right - left, bottom - top
        distance = ((y - top) * across - (x - left) * down) / max(float(np.hypot(across, down)), 1e-9)
        inside = np.minimum(inside, distance)
    return _edge(inside)


def box(size: tuple[int, int], left: float, top: float, right: float, bottom: float) -> np.ndarray:
    """A filled upright rectangle."""
    x, y = pixels(size)
    across = np.clip(np.minimum(x - left, right - x) + 0.5, 0, 1)
    return across * np.clip(np.minimum(y - top, bottom - y) + 0.5, 0, 1)


def paint_(picture: np.ndarray, shape: np.ndarray, colour: np.ndarray | Sequence[float]) -> None:
    """Paint a shape over a picture.

    Args:
        picture: Height × width × 3, float; changed in place.
        shape: The coverage of every pixel.
        colour: Three numbers, or one colour per pixel.
    """
    picture += shape[..., None] * (np.asarray(colour, dtype=float) - picture)


def to_bytes(picture: np.ndarray) -> np.ndarray:
    """A picture with values from 0 to 255 as uint8, channels first."""
    whole: np.ndarray = np.rint(np.clip(picture, 0, 255)).astype(np.uint8)
    return whole.transpose(2, 0, 1)


def _edge(distance: np.ndarray) -> np.ndarray:
    """Coverage from the distance to the edge, which is positive inside."""
    return np.clip(distance + 0.5, 0, 1)


def pixels(size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The coordinates x, shape (1, width), and y, shape (height, 1), of all pixels."""
    return np.arange(size[1], dtype=float)[None], np.arange(size[0], dtype=float)[:, None]
