"""Augmentation of whole batches, on any device, from random numbers drawn beforehand.

Drawing is separate from applying: the numbers come from a CPU generator for the whole global batch, so that they are
the same on every device and for every number of ranks, and each rank applies its own part.

Cutout is that of DeVries and Taylor 2017 (https://arxiv.org/abs/1708.04552): a square of fixed side around a uniform
centre, clipped at the border. Colour jitter is torchvision's: the factors blend an image with black, with its mean grey
or with the grey of each pixel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

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
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
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
    u = to_device(draws.uniform, images.device)
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
    shift, spread = (constant(tuple(scale * value for value in values), images.device) for values in (mean, std))
    return images.to(torch.float32, copy=True).sub_(shift[:, None, None]).div_(spread[:, None, None])


@lru_cache(maxsize=64)
def constant(values: tuple[float, ...] | tuple[int, ...], device: torch.device) -> Tensor:
    """A vector that is moved to its device once: each copy from pageable memory would wait for the whole stream."""
    with torch.inference_mode(False):
        return torch.tensor(values, device=device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a tensor without waiting for the device, which takes pinned memory on a GPU."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


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
    reaches = (augmentation.brightness, augmentation.contrast, augmentation.saturation, augmentation.hue)
    pixels = images.to(torch.float32).div_(255.0)
    for index in order:
        reach, draws = reaches[index], u[:, index, None, None, None]
        if not reach:
            continue
        if index == 3:
            pixels = _turn_hue(pixels, (2 * draws - 1) * reach)
            continue
        low = max(0.0, 1 - reach)
        factor = low + (1 + reach - low) * draws
        if index == 0:
            pixels = pixels * factor
        else:
            grey = _grey(pixels)
            pixels = torch.lerp(grey.mean((2, 3), keepdim=True) if index == 1 else grey, pixels, factor)
        pixels.clamp_(0.0, 1.0)
    return pixels


def _grey(pixels: Tensor) -> Tensor:
    red, green, blue = (pixels[:, channel, None] for channel in range(3))
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _turn_hue(pixels: Tensor, turn: Tensor) -> Tensor:
    """Rotate the hue by a fraction of the colour circle: from RGB to hue, chroma and value, and back."""
    red, green, blue = (pixels[:, channel, None] for channel in range(3))
    value = pixels.amax(1, keepdim=True)
    chroma = value - pixels.amin(1, keepdim=True)
    safe = chroma.clamp(min=1e-8)
    hue = torch.where(value == blue, (red - green) / safe + 4, (blue - red) / safe + 2)
    hue = torch.where(value == red, (green - blue) / safe, hue) + 6 * turn
    # How far each channel is below the value: https://en.wikipedia.org/wiki/HSL_and_HSV#HSV_to_RGB_alternative.
    position = torch.cat([hue + 5, hue + 3, hue + 1], 1).remainder_(6)
    return value - chroma * torch.minimum(position, 4 - position).clamp_(0, 1)


def _pick(u: Tensor, choices: int) -> Tensor:
    # float32 just below 1 times a large count may round up to the count itself.
    return (u * choices).long().clamp_(max=choices - 1)
