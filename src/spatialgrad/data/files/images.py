"""From the bytes of an image file to a square of pixels."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from spatialgrad.data.errors import CorruptDataError, DataError
from spatialgrad.utils.extras import install_command

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".pgm", ".gif", ".tif", ".tiff", ".jp2")
"""Endings of the names of image files, in lower case."""
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "GIF", "TIFF", "JPEG2000")
"""The formats that are decoded, whatever the name of a file; some of Pillow's others run programs."""
EVAL_SCALE = 256 / 224
"""The shorter side is resized to this times the size of the centre crop."""
_MAX_LOG_RATIO = math.log(4 / 3)
_CROP_ATTEMPTS = 10


@contextmanager
def open_image(file: bytes | IO[bytes], name: str, formats: Sequence[str] = FORMATS) -> Iterator[Image]:
    """Open an image file; pixels are decoded when they are used.

    Args:
        file: The file or its content.
        name: The name of the file, for errors.
        formats: Formats of Pillow to accept.

    Raises:
        CorruptDataError: If it is truncated, damaged or not an image, here or in the body of the `with`
            statement.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(f"image files need Pillow: {install_command('train')}") from error
    try:
        with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file, formats=tuple(formats)) as image:
            yield image
    except DataError:
        raise
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise CorruptDataError(f"{name} cannot be decoded: {error}") from error


def decode(content: bytes, name: str) -> Image:
    """Decode an image file to RGB; of an animation, the first frame. For arguments and errors see `open_image`."""
    with open_image(content, name) as image:
        if image.mode.startswith("I"):
            return _from_16_bits(image)
        if image.mode == "F":
            raise CorruptDataError(f"{name} has floating-point pixels, whose range is unknown; convert it to 8 bits")
        # A palette with transparent colours triggers a warning unless it is converted to RGBA first.
        return (image.convert("RGBA") if "transparency" in image.info else image).convert("RGB")


def _from_16_bits(image: Image) -> Image:
    # Pillow would clip all values above 255, which leaves a white image.
    from PIL import Image as Pillow

    return Pillow.fromarray((np.asarray(image).clip(0, 65535) / 257).round().astype(np.uint8)).convert("RGB")


def image_size(file: IO[bytes], name: str) -> tuple[int, int]:
    """Width and height of an image file; only its header is read."""
    with open_image(file, name) as image:
        return image.size


def crop_centre(image: Image, size: int) -> Tensor:
    """The centre of an image: the shorter side is resized to 8/7 of `size`, then cropped to it.

    Returns:
        uint8 of shape (3, size, size).
    """
    scale = round(size * EVAL_SCALE) / min(image.size)
    width, height = (max(size, round(length * scale)) for length in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    return to_tensor(_resize(image, width, height).crop((left, top, left + size, top + size)))


def random_crop(image: Image, size: int, area: tuple[float, float], generator: torch.Generator) -> Tensor:
    """A random box of an image, resized: as `crop_centre`; for `area` see `crop_box`."""
    return to_tensor(_resize(image, size, size, crop_box(*image.size, area, generator)))


def crop_box(
    width: int, height: int, area: tuple[float, float], generator: torch.Generator
) -> tuple[int, int, int, int]:
    """A random box: a uniform share of the image's area, and an aspect ratio log-uniform within 3/4 and 4/3.

    If ten attempts give no box that fits, it is the largest central one of an allowed aspect ratio.

    Args:
        width: Of the image.
        height: Of the image.
        area: Smallest and largest share of the image's area.
        generator: For the draws.

    Returns:
        Left, top, right and bottom.
    """
    draws = torch.rand(_CROP_ATTEMPTS, 4, generator=generator).tolist()
    for u_area, u_ratio, u_left, u_top in draws:
        share = area[0] + (area[1] - area[0]) * u_area
        ratio = math.exp(_MAX_LOG_RATIO * (2 * u_ratio - 1))
        w = round(math.sqrt(width * height * share * ratio))
        h = round(math.sqrt(width * height * share / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(u_left * (width - w + 1)), int(u_top * (height - h + 1))
            return left, top, left + w, top + h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def to_tensor(image: Image) -> Tensor:
    """The pixels of an RGB image as uint8 of shape (3, height, width)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def _resize(image: Image, width: int, height: int, box: tuple[int, int, int, int] | None = None) -> Image:
    from PIL.Image import Resampling

    return image.resize((width, height), Resampling.BILINEAR, box=box)
