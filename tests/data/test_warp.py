"""Image, mask and points move together, by a matrix that depends on seed, epoch and index alone."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spatialgrad.data.warp import (
    STILL,
    Geometry,
    Move,
    affine,
    crop_matrix,
    draw_move,
    move_points,
    warp_image,
    warp_mask,
)

SIZE = (30, 44)
GREY = (120.0, 110.0, 100.0)
WILD = Geometry(scale=(0.5, 2.0), rotation=30, flip=True)
moves = st.builds(
    Move,
    scale=st.floats(0.5, 2.0),
    angle=st.floats(-40, 40),
    flip=st.booleans(),
    row=st.floats(0, 1),
    column=st.floats(0, 1),
)


def picture(size=SIZE, seed=0):
    return torch.randint(0, 256, (3, *size), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def blocks(size=SIZE, seed=0):
    """Classes in large pieces."""
    generator = torch.Generator().manual_seed(seed)
    small = torch.randint(0, 11, (-(-size[0] // 8), -(-size[1] // 8)), generator=generator, dtype=torch.uint8)
    return small.repeat_interleave(8, 0).repeat_interleave(8, 1)[: size[0], : size[1]].contiguous()


def still(**changes):
    return Move(**{"scale": 1.0, "angle": 0.0, "flip": False, "row": 0.5, "column": 0.5, **changes})


def test_nothing_is_changed_by_a_move_that_moves_nothing():
    image, mask = picture(), blocks()
    matrix = crop_matrix(draw_move(STILL, seed=0, epoch=0, index=0), SIZE, SIZE)
    assert torch.equal(matrix, torch.eye(3, dtype=torch.float64))
    assert torch.equal(warp_image(image, matrix, SIZE, GREY), image)
    assert torch.equal(warp_mask(mask, matrix, SIZE, 255), mask)


@pytest.mark.parametrize(("row", "column", "top", "left"), [(0, 0, 0, 0), (1, 1, 13, 19), (0.5, 0.25, 7, 5)])
def test_a_crop_without_scaling_is_an_exact_copy(row, column, top, left):
    image, mask, crop = picture(), blocks(), (17, 25)
    matrix = crop_matrix(still(row=row, column=column), SIZE, crop)
    part = (slice(top, top + 17), slice(left, left + 25))
    assert torch.equal(warp_image(image, matrix, crop, GREY), image[:, *part])
    assert torch.equal(warp_mask(mask, matrix, crop, 255), mask[part])


def test_around_an_image_that_is_smaller_than_the_crop_is_the_mean_colour_and_no_class():
    image, mask, crop = picture(), blocks(), (40, 50)
    matrix = crop_matrix(still(row=0.1, column=0.9), SIZE, crop)
    moved, moved_mask = warp_image(image, matrix, crop, GREY), warp_mask(mask, matrix, crop, 255)
    inside = (slice(5, 35), slice(3, 47))
    assert torch.equal(moved[:, *inside], image)
    assert torch.equal(moved_mask[inside], mask)
    outside = torch.ones(crop, dtype=torch.bool)
    outside[inside] = False
    assert (moved_mask[outside] == 255).all()
    for channel, value in zip(moved, GREY, strict=True):
        assert (channel[outside] == value).all()


@given(move=moves)
@settings(max_examples=25, deadline=None)
def test_the_mask_follows_the_image(move):
    """An image whose colour is its class: pixel by pixel, both are what the matrix says, worked out by hand."""
    crop, mask = (12, 17), blocks()
    image = (mask * 20).expand(3, *SIZE).contiguous()
    matrix = crop_matrix(move, SIZE, crop)
    colours = warp_image(image, matrix, crop, GREY)[0].tolist()
    classes = warp_mask(mask, matrix, crop, 255).tolist()
    back, height, width = torch.linalg.inv(matrix).tolist(), *SIZE
    labels = mask.tolist()

    def colour(row, column):
        return 20 * labels[row][column] if 0 <= row < height and 0 <= column < width else GREY[0]

    for row in range(crop[0]):
        for column in range(crop[1]):
            x, y = (a * column + b * row + c for a, b, c in back[:2])
            if all(abs(value - math.floor(value) - 0.5) > 0.01 for value in (x, y)):  # else two are as near
                near_row, near_column = round(y), round(x)
                inside = 0 <= near_row < height and 0 <= near_column < width
                assert classes[row][column] == (labels[near_row][near_column] if inside else 255)
            top, left = math.floor(y), math.floor(x)
            down, right = y - top, x - left
            upper = (1 - right) * colour(top, left) + right * colour(top, left + 1)
            lower = (1 - right) * colour(top + 1, left) + right * colour(top + 1, left + 1)
            assert abs(colours[row][column] - ((1 - down) * upper + down * lower)) < 0.6


@given(move=moves)
@settings(max_examples=40, deadline=None)
def test_points_follow_the_image(move):
    """A bright spot is found where its point has moved to."""
    spot = (21.0, 14.0)
    rows, columns = torch.meshgrid(torch.arange(30.0), torch.arange(44.0), indexing="ij")
    bright = 255 * torch.exp(-((columns - spot[0]) ** 2 + (rows - spot[1]) ** 2) / 18)
    image = bright.round().to(torch.uint8).expand(3, *SIZE).contiguous()
    crop = (200, 220)
    matrix = crop_matrix(move, SIZE, crop)
    moved = warp_image(image, matrix, crop, (0.0, 0.0, 0.0))[0].double()
    rows, columns = torch.meshgrid(torch.arange(200.0), torch.arange(220.0), indexing="ij")
    found = torch.stack([(moved * columns).sum(), (moved * rows).sum()]) / moved.sum()
    expected = move_points(torch.tensor([spot], dtype=torch.float64), matrix)[0]
    assert (found - expected).norm() < 0.4


@given(move=moves)
@settings(max_examples=40, deadline=None)
def test_a_point_and_back(move):
    matrix = crop_matrix(move, SIZE, (24, 36))
    points = torch.rand(5, 3, 2, dtype=torch.float64) * 40
    torch.testing.assert_close(move_points(move_points(points, matrix), torch.linalg.inv(matrix)), points)
    angle_and_scale = torch.linalg.svdvals(matrix[:2, :2])
    torch.testing.assert_close(angle_and_scale, torch.full((2,), move.scale, dtype=torch.float64))
    assert (torch.linalg.det(matrix) < 0) == move.flip


def test_a_turn_is_clockwise_on_the_screen():
    matrix = affine(source=(10, 10), target=(20, 20), scale=2.0, angle=90)
    points = torch.tensor([[10.0, 10.0], [11.0, 10.0], [10.0, 11.0]])
    torch.testing.assert_close(move_points(points, matrix), torch.tensor([[20.0, 20.0], [20.0, 22.0], [18.0, 20.0]]))


def test_twice_the_size_and_half_of_it():
    """Scaled as an image is resized: pixels are squares, and their corners meet."""
    mask = blocks((16, 16))
    matrix = crop_matrix(still(scale=2.0), (16, 16), (32, 32))
    large = warp_mask(mask, matrix, (32, 32), 255)
    assert torch.equal(large, mask.repeat_interleave(2, 0).repeat_interleave(2, 1))
    image = picture((16, 16))
    half = warp_image(image, crop_matrix(still(scale=0.5), (16, 16), (8, 8)), (8, 8), GREY)
    means = image.double().unfold(1, 2, 2).unfold(2, 2, 2).mean((3, 4))
    assert (half - means).abs().max() <= 0.51


def test_runs_that_differ_in_one_thing_agree_in_the_others():
    for index in range(20):
        wild, calm = (
            draw_move(geometry, seed=0, epoch=0, index=index)
            for geometry in (WILD, Geometry(scale=(0.5, 2.0), flip=True))
        )
        assert (wild.scale, wild.flip, wild.row, wild.column) == (calm.scale, calm.flip, calm.row, calm.column)
        assert calm.angle == 0


def test_moves_are_spread_as_they_should_be():
    drawn = [draw_move(WILD, seed=0, epoch=0, index=index) for index in range(2000)]
    scales = torch.tensor([move.scale for move in drawn])
    angles = torch.tensor([move.angle for move in drawn])
    turned = angles[angles != 0]
    assert (scales.min(), scales.max()) == (pytest.approx(0.5, abs=0.01), pytest.approx(2.0, abs=0.01))
    assert scales.mean() == pytest.approx(1.25, abs=0.04)
    assert len(turned) == pytest.approx(1000, abs=100)
    assert turned.abs().max() <= 30
    assert turned.mean() == pytest.approx(0, abs=2)
    assert turned.std() == pytest.approx(60 / math.sqrt(12), abs=1)
    assert sum(move.flip for move in drawn) == pytest.approx(1000, abs=100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": (0.0, 1.0)}, "scale"),
        ({"scale": (2.0, 1.0)}, "scale"),
        ({"rotation": -1}, "rotation"),
        ({"rotation_share": 2}, "rotation_share"),
    ],
)
def test_wrong_values_are_named(options, message):
    with pytest.raises(ValueError, match=rf"Geometry\.{message}"):
        Geometry(**options)
