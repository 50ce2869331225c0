"""PCK and PCKh: cases by hand, plain loops, and totals that add up."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spatialgrad.train.tasks.keypoints import count_right, mean_over_joints


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


def test_totals_add_up_over_parts():
    joints, lengths = torch.rand(9, 4, 2) * 10, torch.rand(9) * 8
    predicted, visible = joints + torch.randn(9, 4, 2), torch.rand(9, 4) < 0.7
    whole = count_right(predicted, joints, visible, lengths, 0.5)
    parts = [count_right(predicted[p], joints[p], visible[p], lengths[p], 0.5) for p in (slice(0, 4), slice(4, 9))]
    assert all(torch.equal(sum(part[i] for part in parts), whole[i]) for i in (0, 1))
