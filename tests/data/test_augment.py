import colorsys

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from spatialgrad.data.augment import (
    IMAGENET,
    Augmentation,
    Draws,
    augment,
    constant,
    cut_out_,
    draw,
    normalize,
    shifted_crop,
)

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
# Exact in binary, so that a jitter or a crop alone can be read back from the result.
PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def _images(count=16, size=12, channels=3):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8, generator=generator)


def _draws(count=16, seed=0):
    return draw(count, torch.Generator().manual_seed(seed))


def test_normalize():
    images = _images()
    expected = (images.double() / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    torch.testing.assert_close(normalize(images, MEAN, STD), expected.float())
    pixels = images.float() / 255
    torch.testing.assert_close(normalize(pixels, MEAN, STD), expected.float())
    assert torch.equal(pixels, images.float() / 255)


def test_nothing_to_do_is_only_normalized():
    images = _images()
    assert torch.equal(augment(images, Augmentation(), _draws(), mean=MEAN, std=STD), normalize(images, MEAN, STD))


@pytest.mark.parametrize("size", [12, 9])
def test_each_crop_is_a_slice_of_the_padded_image(size):
    images = _images(size=size)
    u = torch.linspace(0, 0.9999, 16)
    crops = shifted_crop(images, 4, u, u.flip(0))
    for image, crop, top, left in zip(images, crops, (u * 9).long(), (u.flip(0) * 9).long(), strict=True):
        padded = np.pad(image.numpy(), ((0, 0), (4, 4), (4, 4)))
        np.testing.assert_array_equal(crop.numpy(), padded[:, top : top + size, left : left + size])


def test_crops_and_flips_are_uniform():
    # One bright pixel tells where the crop began and whether it was mirrored.
    images = torch.zeros(20_000, 1, 12, 12, dtype=torch.uint8)
    images[:, 0, 6, 4] = 255
    config = Augmentation(crop_padding=4, flip=True)
    batch = augment(images, config, _draws(20_000), mean=(0.0,), std=(1.0,))
    found = batch[:, 0].nonzero()
    assert len(found) == 20_000
    rows = torch.bincount(found[:, 1], minlength=12)
    assert rows[2:11].min() > 2000 > rows[11] == rows[:2].sum() == 0
    columns = torch.bincount(found[:, 2], minlength=12)
    # Not mirrored: columns 0 to 8; mirrored: columns 3 to 11. Those that both reach come up twice as often.
    expected = torch.tensor([1, 1, 1, 2, 2, 2, 2, 2, 2, 1, 1, 1]) * 20_000 / 18
    assert (columns - expected).abs().max() < 6 * expected.max().sqrt()


def test_cutout_is_a_square_around_a_centre_and_stops_at_the_border():
    batch = torch.ones(3, 2, 32, 32)
    cut_out_(batch, 16, torch.tensor([0.0, 0.5, 0.99]), torch.tensor([0.5, 0.5, 0.0]))
    assert batch[0, :, :8, 8:24].eq(0).all()
    assert (1 - batch).sum((1, 2, 3)).tolist() == [2 * 8 * 16, 2 * 16 * 16, 2 * 9 * 8]
    assert batch[1, :, 8:24, 8:24].eq(0).all()


def test_cutout_covers_every_pixel_equally_in_the_middle_and_leaves_the_mean_colour():
    images = torch.full((8000, 3, 32, 32), 255, dtype=torch.uint8)
    batch = augment(images, Augmentation(cutout=16), _draws(8000), mean=MEAN, std=STD)
    share = batch.eq(0).float().mean(0)
    assert share[:, 8:24, 8:24].sub(0.25).abs().max() < 0.03
    assert share[:, 0, 0].sub((8 / 32) ** 2).abs().max() < 0.02


def _one(pixel, config, **columns):
    uniform = torch.full((1, 9), 0.5)
    for column, value in columns.items():
        uniform[0, {"brightness": 3, "contrast": 4, "saturation": 5, "hue": 6}[column]] = value
    return augment(pixel, config, Draws(uniform, (0, 1, 2, 3)), **PLAIN)


@pytest.mark.parametrize("field", ["brightness", "contrast", "saturation"])
@pytest.mark.parametrize("u", [0.0, 0.9])
def test_colour_jitter_agrees_with_pillow(field, u):
    image = Image.fromarray(_images(1, 16)[0].permute(1, 2, 0).numpy())
    enhancer = {
        "brightness": ImageEnhance.Brightness,
        "contrast": ImageEnhance.Contrast,
        "saturation": ImageEnhance.Color,
    }[field]
    expected = torch.from_numpy(np.array(enhancer(image).enhance(0.6 + 0.8 * u))).permute(2, 0, 1) / 255
    found = _one(_images(1, 16), Augmentation(**{field: 0.4}), **{field: u})[0]
    torch.testing.assert_close(found, expected, atol=2.5 / 255, rtol=0)


@pytest.mark.parametrize("u", [0.1, 0.5, 0.8])
def test_hue_turns_around_the_circle(u):
    images = _images(1, 4)
    found = _one(images, Augmentation(hue=0.5), hue=u)[0]
    for row in range(4):
        for column in range(4):
            h, s, v = colorsys.rgb_to_hsv(*(images[0, :, row, column] / 255).tolist())
            expected = colorsys.hsv_to_rgb((h + (2 * u - 1) * 0.5) % 1, s, v)
            assert found[:, row, column].tolist() == pytest.approx(expected, abs=0.01)


def test_jitter_does_its_parts_in_the_order_that_was_drawn():
    images, uniform = _images(), torch.rand(16, 9, generator=torch.Generator().manual_seed(3))
    config = Augmentation(brightness=0.9, contrast=0.9)
    one, other = (augment(images, config, Draws(uniform, order), **PLAIN) for order in ((0, 1, 2, 3), (1, 0, 3, 2)))
    assert not torch.allclose(one, other, atol=0.01)
    assert len({_draws(1, seed).order for seed in range(200)}) == 24


def test_a_part_of_the_batch_gives_that_part_of_the_result():
    images, draws = _images(), _draws()
    config = Augmentation(crop_padding=2, flip=True, cutout=6, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    whole = augment(images, config, draws, mean=MEAN, std=STD)
    parts = [augment(images[a:b], config, draws.part(a, b), mean=MEAN, std=STD) for a, b in ((0, 5), (5, 16))]
    assert torch.equal(whole, torch.cat(parts))


def test_the_global_generator_is_neither_read_nor_moved():
    config = Augmentation(crop_padding=2, flip=True, cutout=6, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        results.append(augment(_images(), config, _draws(), mean=MEAN, std=STD))
        assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(*results)


def test_switching_cutout_on_changes_no_crop():
    images = _images()
    without, with_cutout = (
        augment(images, Augmentation(crop_padding=2, flip=True, cutout=cutout), _draws(), mean=MEAN, std=STD)
        for cutout in (0, 4)
    )
    kept = with_cutout != 0
    assert 0.5 < kept.float().mean() < 1
    assert torch.equal(without[kept], with_cutout[kept])


def test_grey_images_have_no_colours_to_jitter():
    with pytest.raises(ValueError, match="3 channels, got 1"):
        augment(_images(channels=1), IMAGENET, _draws(), mean=(0.5,), std=(0.5,))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"crop_padding": -1}, "crop_padding must not be negative, got -1"),
        ({"cutout": -16}, "cutout must not be negative"),
        ({"saturation": -0.1}, "saturation must not be negative"),
        ({"hue": 0.6}, "hue is a fraction of the colour circle"),
        ({"resized_crop": (0.0, 1.0)}, "resized_crop must be"),
        ({"resized_crop": (0.5, 0.2)}, r"resized_crop must be 0 < low <= high <= 1, got \(0.5, 0.2\)"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Augmentation(**fields)


def test_means_are_moved_to_a_device_once():
    assert constant((0.5, 0.4), torch.device("cpu")) is constant((0.5, 0.4), torch.device("cpu"))
