"""Augmentation of whole batches, on any device, from random numbers drawn beforehand.

Drawing is separate from applying: the numbers come from a CPU generator for the whole global batch, so that they are
the same on every device and for every number of ranks, and each rank applies its own part.

Colour jitter is kornia's. Crop, flip and cutout are implemented here: kornia draws from the global random state only,
and its random erasing is not the cutout of DeVries and Taylor 2017 (https://arxiv.org/abs/1708.04552: a square of fixed
side around a uniform centre, clipped at the border). `benchmarks/bench_data.py` compares their speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Augmentation of training images, applied in this order: resized crop, crop, flip, colour jitter, cutout."""

    resized_crop: tuple[float, float] | None = None
    """Smallest and largest share of the image's area in a random crop, which is then resized to the image size; aspect
    ratio 3/4 to 4/3. For images in files only, as it is applied while decoding."""
    crop_padding: int = 0
    """Black pixels added on every side before a random crop of the original size."""
    flip: bool = False
    """Mirror horizontally with probability one half."""
    brightness: float = 0.0
    """Brightness factor within 1 ± this."""
    contrast: float = 0.0
    """Contrast factor, relative to the image's mean grey, within 1 ± this."""
    saturation: float = 0.0
    """Saturation factor, relative to each pixel's grey, within 1 ± this."""
    hue: float = 0.0
    """Rotation of the hue within ± this, as a fraction of the colour circle; at most 0.5."""
    cutout: int = 0
    """Side of the square that is set to the mean colour."""

    def __post_init__(self) -> None:
        for field in ("crop_padding", "cutout", "brightness", "contrast", "saturation", "hue"):
            if getattr(self, field) < 0:
                raise ValueError(f"Augmentation.{field} must not be negative, got {getattr(self, field)}")
        if self.hue > 0.5:
            raise ValueError(f"Augmentation.hue is a fraction of the colour circle, at most 0.5, got {self.hue}")
        if self.resized_crop is not None:
            low, high = self.resized_crop
            if not 0 < low <= high <= 1:
                raise ValueError(f"Augmentation.resized_crop must be 0 < low <= high <= 1, got ({low}, {high})")

    @property
    def jitters(self) -> bool:
        """Whether it includes colour jitter."""
        return any((self.brightness, self.contrast, self.saturation, self.hue))


CIFAR = Augmentation(crop_padding=4, flip=True)
"""Crop with padding 4 and flip; the paper's appendix adds `cutout=16`."""
IMAGENET = Augmentation(resized_crop=(0.08, 1.0), flip=True, brightness=0.06, contrast=0.06, saturation=0.06)
"""Random resized crop, flip and colour jitter."""


@dataclass(frozen=True)
class Draws:
    """The random numbers of a batch: one row per image, uniform in [0, 1), and the order of the colour jitters."""

    uniform: Tensor
    order: tuple[int, ...]

    def part(self, start: int, stop: int) -> Draws:
        """The numbers of the images from `start` to `stop`."""
        return Draws(self.uniform[start:stop], self.order)


def draw(count: int, generator: torch.Generator) -> Draws:
    """Draw all random numbers that any augmentation of `count` images may need.

    The draws do not depend on the augmentation: two runs that differ only in cutout see the same crops and flips.
    """
    uniform = torch.rand(count, 9, generator=generator)
    order = torch.randperm(4, generator=generator)
    return Draws(uniform, tuple(order.tolist()))


def augment(
    images: Tensor,
    augmentation: Augmentation,
    draws: Draws,
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Tensor:
    """Augment and normalize a batch.

    Args:
        images: Shape (number, channels, height, width), uint8.
        augmentation: The augmentation; its `resized_crop` is applied while decoding, not here.
        draws: One row per image.
        mean: Mean of each channel, for pixels in [0, 1].
        std: Standard deviation of each channel, for pixels in [0, 1].

    Returns:
        float32 of the same shape, on the same device.
    """
    if len(draws.uniform) != len(images):
        raise ValueError(f"{len(draws.uniform)} rows of random numbers for {len(images)} images")
    u = draws.uniform.to(images.device, non_blocking=True)
    if augmentation.crop_padding:
        images = shifted_crop(images, augmentation.crop_padding, u[:, 0], u[:, 1])
    if augmentation.flip:
        images = torch.where(u[:, 2, None, None, None] < 0.5, images.flip(3), images)
    if augmentation.jitters:
        images = jitter_colours(images, augmentation, u[:, 3:7], draws.order)
    batch = normalize(images, mean, std)
    if augmentation.cutout:
        cut_out_(batch, augmentation.cutout, u[:, 7], u[:, 8])
    return batch


def normalize(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Normalize pixels to mean 0 and standard deviation 1: uint8 in 0 to 255, or float in [0, 1], to float32."""
    scale = 1.0 if images.is_floating_point() else 255.0
    shift = torch.tensor(mean, device=images.device).mul_(scale)[:, None, None]
    spread = torch.tensor(std, device=images.device).mul_(scale)[:, None, None]
    return images.to(torch.float32, copy=True).sub_(shift).div_(spread)


def shifted_crop(images: Tensor, padding: int, u_y: Tensor, u_x: Tensor) -> Tensor:
    """Pad with zeros and take a crop of the original size from each image.

    Args:
        images: Shape (number, channels, height, width).
        padding: Zeros on every side.
        u_y: Shape (number,), in [0, 1): from the topmost to the bottommost crop.
        u_x: The same, from left to right.
    """
    number, _, height, width = images.shape
    # Every crop is a view; indexing copies one per image in whole rows, unlike a gather.
    crops = F.pad(images, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    rows, columns = (_pick(u, 2 * padding + 1) for u in (u_y, u_x))
    return crops[torch.arange(number, device=images.device), :, rows, columns]


def cut_out_(batch: Tensor, side: int, u_y: Tensor, u_x: Tensor) -> Tensor:
    """Set a square in each image to 0, in place.

    Args:
        batch: Shape (number, channels, height, width), normalized: 0 is the mean colour.
        side: Side of the square.
        u_y: Shape (number,), in [0, 1): the row of the centre, anywhere in the image.
        u_x: The same for its column; the square is clipped at the border.
    """

    def inside(u: Tensor, length: int) -> Tensor:
        first = _pick(u, length)[:, None] - side // 2
        position = torch.arange(length, device=u.device)
        return (position >= first) & (position < first + side)

    rows, columns = inside(u_y, batch.shape[2]), inside(u_x, batch.shape[3])
    return batch.masked_fill_((rows[:, :, None] & columns[:, None, :])[:, None], 0.0)


def jitter_colours(images: Tensor, augmentation: Augmentation, u: Tensor, order: tuple[int, ...]) -> Tensor:
    """Change the brightness, contrast, saturation and hue of each image.

    Args:
        images: Shape (number, 3, height, width), uint8.
        augmentation: The range of each.
        u: Shape (number, 4), in [0, 1): the factors of brightness, contrast, saturation and hue.
        order: The order in which the four are applied.

    Returns:
        float32 in [0, 1].
    """
    if images.shape[1] != 3:
        raise ValueError(f"colour jitter needs images of 3 channels, got {images.shape[1]}")
    try:
        from kornia import enhance
    except ImportError as error:
        raise ImportError("colour jitter needs kornia: pip install 'spatialgrad[train]'") from error

    def factor(column: int, reach: float) -> Tensor:
        return torch.lerp(u.new_tensor(max(0.0, 1 - reach)), u.new_tensor(1 + reach), u[:, column])

    a = augmentation
    steps: tuple[tuple[float, Callable[[Tensor], Tensor]], ...] = (
        (a.brightness, lambda x: enhance.adjust_brightness_accumulative(x, factor(0, a.brightness))),
        (a.contrast, lambda x: enhance.adjust_contrast_with_mean_subtraction(x, factor(1, a.contrast))),
        (a.saturation, lambda x: enhance.adjust_saturation_with_gray_subtraction(x, factor(2, a.saturation))),
        (a.hue, lambda x: enhance.adjust_hue(x, (2 * u[:, 3] - 1) * (a.hue * 2 * math.pi))),
    )
    pixels = images.to(torch.float32).div_(255.0)
    for index in order:
        reach, step = steps[index]
        if reach:
            pixels = step(pixels)
    return pixels


def _pick(u: Tensor, choices: int) -> Tensor:
    # float32 just below 1 times a large count may round up to the count itself.
    return (u * choices).long().clamp_(max=choices - 1)
