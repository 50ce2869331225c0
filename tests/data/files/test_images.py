import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from spatialgrad.data.errors import CorruptDataError
from spatialgrad.data.files.images import crop_box, crop_centre, decode, random_crop
from support.data_files import image_bytes


def _save(image, format, **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "BMP", "PPM", "GIF", "TIFF", "JPEG2000"])
def test_decodes_the_usual_formats(format):
    assert decode(image_bytes(format=format), "x").size == (40, 30)


@pytest.mark.parametrize(("mode", "format"), [("L", "JPEG"), ("CMYK", "JPEG"), ("1", "PNG"), ("RGBA", "PNG")])
def test_other_colour_modes_become_rgb(mode, format):
    image = decode(_save(Image.new("RGB", (8, 8), "white").convert(mode), format), "x")
    assert image.mode == "RGB"
    assert np.array(image).min() > 250


def test_a_palette_with_transparency_becomes_rgb_without_a_warning():
    palette = Image.new("RGB", (8, 8), "red").convert("P")
    image = decode(_save(palette, "PNG", transparency=bytes([0, 100])), "x")
    assert np.array(image)[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("content", [b"", b"<html>", image_bytes()[:300], image_bytes(format="PNG")[:-30]])
def test_what_cannot_be_decoded_is_named(content):
    with pytest.raises(CorruptDataError, match=r"^tree/cat\.jpg cannot be decoded"):
        decode(content, "tree/cat.jpg")


@pytest.mark.parametrize(("dtype", "format"), [("u2", "PNG"), ("u2", "TIFF"), ("i4", "TIFF")])
def test_images_of_16_bits_keep_their_shades(dtype, format):
    ramp = np.tile(np.arange(0, 65536, 257), (4, 1)).astype(dtype)
    pixels = np.array(decode(_save(Image.fromarray(ramp), format), "x"))
    assert pixels.shape == (4, 256, 3)
    np.testing.assert_array_equal(pixels[0, :, 1], np.arange(256))


def test_images_of_an_unknown_range_are_named():
    with pytest.raises(CorruptDataError, match=r"^scan\.tif has floating-point pixels"):
        decode(_save(Image.fromarray(np.ones((4, 4), dtype="f4")), "TIFF"), "scan.tif")


def test_formats_that_run_programs_are_not_opened():
    content = _save(Image.new("RGB", (8, 8)), "EPS")
    with pytest.raises(CorruptDataError, match="cannot be decoded"):
        decode(content, "x")


@pytest.mark.parametrize("size", [(224, 224), (500, 375), (375, 500), (1000, 60), (30, 20), (1, 1)])
@pytest.mark.parametrize("target", [224, 64, 7])
def test_evaluation_and_training_crops_have_the_size_asked_for(size, target):
    image = Image.new("RGB", size, (10, 200, 30))
    for pixels in (crop_centre(image, target), random_crop(image, target, (0.08, 1.0), torch.Generator())):
        assert (pixels.shape, pixels.dtype) == ((3, target, target), torch.uint8)
        assert pixels.flatten(1).float().mean(1).tolist() == [10, 200, 30]


def test_evaluation_takes_the_centre_of_the_resized_image():
    # 512 × 256 resized to 512 × 256, then columns 144 to 368 and rows 16 to 240 are kept.
    across = np.tile(np.arange(512, dtype=np.int64)[None, :, None] // 2, (256, 1, 3)).astype(np.uint8)
    pixels = crop_centre(Image.fromarray(across), 224)
    assert pixels[0, 0, [0, -1]].tolist() == [144 // 2, 367 // 2]
    down = np.tile(np.arange(256)[:, None, None], (1, 512, 3)).astype(np.uint8)
    assert crop_centre(Image.fromarray(down), 224)[0, [0, -1], 0].tolist() == [16, 239]


@settings(deadline=None)
@given(
    width=st.integers(1, 800),
    height=st.integers(1, 800),
    low=st.floats(0.01, 1),
    seed=st.integers(0, 2**32),
)
def test_boxes_stay_inside_and_keep_their_ratio(width, height, low, seed):
    left, top, right, bottom = crop_box(width, height, (low, 1.0), torch.Generator().manual_seed(seed))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    w, h = right - left, bottom - top
    # Sides are rounded to whole pixels, each by half a pixel at most.
    assert (w - 0.5) / (h + 0.5) <= 4 / 3 + 1e-9
    assert (w + 0.5) / (h - 0.5) >= 3 / 4 - 1e-9


def test_areas_and_ratios_of_boxes_are_spread_as_asked():
    generator = torch.Generator().manual_seed(0)
    boxes = [crop_box(1000, 1000, (0.1, 0.5), generator) for _ in range(4000)]
    areas = torch.tensor([(r - left) * (b - top) / 1e6 for left, top, r, b in boxes])
    ratios = torch.tensor([math.log((r - left) / (b - top)) for left, top, r, b in boxes])
    lefts = torch.tensor([left / (1000 - (r - left)) for left, _, r, _ in boxes])
    # Kolmogorov and Smirnov: the largest distance from the uniform distribution, 4000 values.
    for values, low, high in ((areas, 0.1, 0.5), (ratios, -math.log(4 / 3), math.log(4 / 3)), (lefts, 0.0, 1.0)):
        ranks = (torch.arange(4000) + 0.5) / 4000
        assert ((values.sort().values - low) / (high - low) - ranks).abs().max() < 0.035


def test_an_image_too_long_for_any_box_gives_its_middle():
    assert crop_box(1000, 30, (0.9, 1.0), torch.Generator()) == (480, 0, 520, 30)
    assert crop_box(30, 1000, (0.9, 1.0), torch.Generator()) == (0, 480, 30, 520)
