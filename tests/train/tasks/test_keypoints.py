"""Joints as heat maps and back, and PCK and PCKh: by hand, against plain loops, and as totals that add up."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spatialgrad.train.tasks.keypoints import (
    count_right,
    decode,
    default_sigma,
    encode,
    from_map,
    mean_over_joints,
    to_map,
)


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


def test_coordinates_of_image_and_map_are_each_others_inverse():
    joints = torch.rand(10, 2) * 64
    torch.testing.assert_close(from_map(to_map(joints, 4), 4), joints)
    assert to_map(torch.tensor(1.5), 4) == 0  # the first pixel of the map holds the pixels 0 to 3


def test_half_precision_maps_do_not_round_the_joints():
    maps = torch.zeros(1, 1, 64, 64, dtype=torch.bfloat16)
    maps[0, 0, 61, 63], maps[0, 0, 62, 63] = 1, 0.5
    assert decode(maps, 4)[0, 0].tolist() == [63 * 4 + 1.5, 61.25 * 4 + 1.5]


@pytest.mark.parametrize(("side", "sigma"), [(64, 2), (96, 3), (32, 1), (16, 1)])
def test_default_sigma(side, sigma):
    assert default_sigma(side) == sigma


def plain_pck(predicted, joints, visible, lengths, threshold, which):
    """Joint by joint, person by person."""
    shares = []
    for joint in which:
        right = everyone = 0
        for person, length in enumerate(lengths):
            if not visible[person][joint] or length <= 0:
                continue
            everyone += 1
            dx, dy = (predicted[person][joint][axis] - joints[person][joint][axis] for axis in (0, 1))
            right += math.hypot(dx, dy) / length <= threshold
        if everyone:
            shares.append(right / everyone)
    return sum(shares) / len(shares) if shares else 0.0


def pck(predicted, joints, visible, lengths, threshold, which):
    return mean_over_joints(*count_right(predicted, joints, visible, lengths, threshold), which)


def test_by_hand():
    # Two people, three joints; heads of 10 and 20 pixels, so that 5 and 10 pixels are near enough.
    joints = torch.zeros(2, 3, 2)
    predicted = torch.tensor([[[3.0, 4.0], [5.1, 0], [0, 0]], [[0, 9.9], [6, 8], [50, 50]]])
    visible = torch.tensor([[True, True, True], [True, True, False]])
    lengths = torch.tensor([10.0, 20.0])
    right, scored = count_right(predicted, joints, visible, lengths, 0.5)
    assert right.tolist() == [2, 1, 1]  # 5 of 5 is right, 5.1 is not; 10 of 10 is; a hidden joint does not count
    assert scored.tolist() == [2, 2, 1]
    assert mean_over_joints(right, scored, (0, 1, 2)) == pytest.approx((1 + 0.5 + 1) / 3)
    assert mean_over_joints(right, scored, (1,)) == 0.5


def test_people_without_a_length_and_joints_of_nobody_are_left_out():
    joints, visible = torch.zeros(2, 2, 2), torch.tensor([[True, False], [True, False]])
    right, scored = count_right(joints, joints, visible, torch.tensor([0.0, 7.0]), 0.2)
    assert right.tolist() == scored.tolist() == [1, 0]
    assert mean_over_joints(right, scored, (0, 1)) == 1


def test_nobody_at_all_is_no_nan():
    joints = torch.zeros(1, 2, 2)
    right, scored = count_right(joints, joints, torch.zeros(1, 2, dtype=torch.bool), torch.tensor([5.0]), 0.5)
    assert mean_over_joints(right, scored, (0, 1)) == 0


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), people=st.integers(1, 6), threshold=st.sampled_from([0.2, 0.5]))
def test_against_plain_loops(seed, people, threshold):
    generator = torch.Generator().manual_seed(seed)
    joints = torch.rand(people, 4, 2, generator=generator, dtype=torch.float64) * 10
    predicted = joints + torch.randn(people, 4, 2, generator=generator, dtype=torch.float64)
    visible = torch.rand(people, 4, generator=generator) < 0.7
    lengths = torch.randint(0, 8, (people,), generator=generator).double()
    which = (0, 1, 3)
    expected = plain_pck(predicted.tolist(), joints.tolist(), visible.tolist(), lengths.tolist(), threshold, which)
    assert pck(predicted, joints, visible, lengths, threshold, which) == pytest.approx(expected)
