"""Joints as heat maps and back, against plain loops and by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spatialgrad.train.tasks.heatmaps import decode, encode, from_map, to_map, usual_sigma


def plain_encode(x, y, side, stride, sigma):
    """Pixel by pixel: how far its centre is from the joint, in pixels of the map."""
    rows = []
    for row in range(side):
        rows.append([])
        for column in range(side):
            centre_x, centre_y = column * stride + (stride - 1) / 2, row * stride + (stride - 1) / 2
            squared = ((centre_x - x) ** 2 + (centre_y - y) ** 2) / stride**2
            rows[-1].append(math.exp(-squared / (2 * sigma**2)))
    return torch.tensor(rows)


def plain_decode(heat_map, stride):
    side = len(heat_map)
    values = {(row, column): float(heat_map[row][column]) for row in range(side) for column in range(side)}
    row, column = max(values, key=values.get)
    places = []
    for at, lower, higher in (
        (column, values.get((row, column - 1)), values.get((row, column + 1))),
        (row, values.get((row - 1, column)), values.get((row + 1, column))),
    ):
        if lower is not None and higher is not None and lower != higher:
            at += 0.25 if higher > lower else -0.25
        places.append(at * stride + (stride - 1) / 2)
    return places


def test_a_joint_in_the_middle_of_a_pixel_is_a_symmetric_peak_of_height_one():
    (heat_map,) = encode(torch.tensor([[9.5, 5.5]]), 8, 4, 1.0)  # pixel (2, 1): 8 to 11 and 4 to 7
    assert heat_map[1, 2] == 1
    assert heat_map[1, 1] == heat_map[1, 3] == heat_map[0, 2] == heat_map[2, 2] == pytest.approx(math.exp(-0.5))
    assert heat_map.argmax() == 1 * 8 + 2


@pytest.mark.parametrize(("x", "y"), [(0, 0), (13.2, 40.7), (63, 63), (-3, 70), (31.5, 31.49)])
def test_encoding_against_a_loop_over_pixels(x, y):
    (heat_map,) = encode(torch.tensor([[x, y]], dtype=torch.float64), 16, 4, 2.0)
    torch.testing.assert_close(heat_map, plain_encode(x, y, 16, 4, 2.0).double(), rtol=1e-5, atol=1e-7)


def test_decoding_against_a_loop_over_pixels():
    maps = torch.randn(5, 3, 12, 12)
    maps[0, 0, 0, 0] = maps[0, 1, 11, 4] = maps[0, 2, 3, 11] = 9  # at the border, there is one neighbour only
    expected = torch.tensor([[plain_decode(joint.tolist(), 4) for joint in person] for person in maps])
    torch.testing.assert_close(decode(maps, 4), expected)


@settings(deadline=None)
@given(x=st.floats(3.6, 59.4), y=st.floats(3.6, 59.4), sigma=st.sampled_from([1.0, 2.0]))
def test_a_decoded_joint_is_within_a_quarter_of_a_pixel_of_the_map(x, y, sigma):
    joints = torch.tensor([[x, y]], dtype=torch.float64)
    found = decode(encode(joints, 16, 4, sigma), 4)
    assert (found - joints).abs().max() <= 0.25 * 4 + 1e-6


def test_mirroring_a_map_mirrors_the_joint():
    maps = torch.randn(4, 5, 16, 16)
    x, y = decode(maps, 4).unbind(-1)
    torch.testing.assert_close(decode(maps.flip(-1), 4), torch.stack([63 - x, y], -1))


def test_coordinates_of_image_and_map_are_each_others_inverse():
    joints = torch.rand(10, 2) * 64
    torch.testing.assert_close(from_map(to_map(joints, 4), 4), joints)
    assert to_map(torch.tensor(1.5), 4) == 0  # the first pixel of the map holds the pixels 0 to 3


def test_half_precision_maps_do_not_round_the_joints():
    maps = torch.zeros(1, 1, 64, 64, dtype=torch.bfloat16)
    maps[0, 0, 61, 63], maps[0, 0, 62, 63] = 1, 0.5
    assert decode(maps, 4)[0, 0].tolist() == [63 * 4 + 1.5, 61.25 * 4 + 1.5]


@pytest.mark.parametrize(("side", "sigma"), [(64, 2), (96, 3), (32, 1), (16, 1)])
def test_usual_sigma(side, sigma):
    assert usual_sigma(side) == sigma
