"""From the bytes of one image file to a square of pixels."""

from __future__ import annotations

import io
import math
from typing import IO, TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from spatialgrad.data.classification import ResizedCrop
from spatialgrad.data.errors import CorruptDataError
from spatialgrad.data.rng import generator_for

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM")
"""The formats that are decoded, whatever a file's name says; Pillow's rarer ones stay closed to strangers."""
EVAL_SCALE = 256 / 224
"""The shorter side is resized to this times the size of the centre crop."""
_MAX_LOG_RATIO = math.log(4 / 3)
_CROP_ATTEMPTS = 10


def decode(content: bytes, name: str) -> Image:
    """Decode an image file to RGB.

    Args:
        content: Of the file.
        name: Of the file, for errors.

    Raises:
        CorruptDataError: If it is truncated, damaged, or no image.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("image files need Pillow: pip install 'spatialgrad[train]'") from error
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            # A palette with transparent colours loses them with a warning, unless it goes by way of RGBA.
            return (image.convert("RGBA") if "transparency" in image.info else image).convert("RGB")
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise CorruptDataError(f"{name} cannot be decoded: {error}") from error


def image_size(file: IO[bytes], name: str) -> tuple[int, int]:
    """Width and height of an image file; no more than its header is read.

    Raises:
        CorruptDataError: If it is damaged, or no image.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("image files need Pillow: pip install 'spatialgrad[train]'") from error
    try:
        with Image.open(file, formats=FORMATS) as image:
            return image.size
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise CorruptDataError(f"{name} cannot be decoded: {error}") from error


def resize_and_crop(image: Image, size: int) -> Tensor:
    """The centre of an image, for evaluation: shorter side resized to 8/7 of `size`, then cropped to it."""
    scale = round(size * EVAL_SCALE) / min(image.size)
    width, height = (max(size, round(length * scale)) for length in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    return _pixels(_resize(image, width, height).crop((left, top, left + size, top + size)))


def crop_and_resize(image: Image, size: int, crop: ResizedCrop, index: int) -> Tensor:
    """A random part of an image, for training, resized to a square of `size`.

    Args:
        image: The whole image.
        size: Of the result.
        crop: How large the part may be, and the seed and epoch that decide about it.
        index: Of the image in its split, which decides with them.
    """
    generator = generator_for("resized crop", crop.seed, crop.epoch, index)
    box = crop_box(*image.size, crop.area, generator)
    return _pixels(_resize(image, size, size, box))


def crop_box(
    width: int, height: int, area: tuple[float, float], generator: torch.Generator
) -> tuple[int, int, int, int]:
    """A random box: its area a uniform share of the image's, its ratio within 3/4 and 4/3, log-uniform.

    Where ten tries give none that fits, it is the largest central one of an allowed ratio.

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


def _resize(image: Image, width: int, height: int, box: tuple[int, int, int, int] | None = None) -> Image:
    from PIL.Image import Resampling

    return image.resize((width, height), Resampling.BILINEAR, box=box)


def _pixels(image: Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)
