"""A person cut out of an image, and moved by augmentation: pixels and joints stay together."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from spatialgrad.data.batches import Pass
from spatialgrad.data.pose import (
    PoseAugmentation,
    canvas_side,
    crop_person,
    draw_person_move,
    mirror_joints,
    move_person,
    place_on_canvas,
)
from spatialgrad.data.sets.lspet import SKELETON as LSP
from spatialgrad.data.sets.lspet import read
from spatialgrad.data.sets.mpii import SKELETON as MPII
from spatialgrad.data.warp import Move
from support.pose_files import write_lspet

STILL = Move(scale=1.0, angle=0.0, flip=False, row=0.5, column=0.5)


def dot(x, y, width=90, height=70, radius=3.0):
    """A black image with a soft white dot around (x, y)."""
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    values = 255 * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * radius**2))
    return Image.fromarray(np.repeat(values.astype(np.uint8)[..., None], 3, 2))


def brightest(image):
    """Where the middle of what is bright lies, by its centre of mass."""
    values = image.double().mean(0)
    rows, columns = (torch.arange(length).double() for length in values.shape)
    whole = values.sum()
    return torch.stack([(values.sum(0) * columns).sum() / whole, (values.sum(1) * rows).sum() / whole])


@pytest.mark.parametrize("skeleton", [LSP, MPII])
def test_mirroring_twice_changes_nothing_and_swaps_sides_once(skeleton):
    order = torch.arange(skeleton.num_joints)
    once = mirror_joints(order, skeleton)
    assert torch.equal(mirror_joints(once, skeleton), order)
    swap = {"left": "right", "right": "left", "middle": "middle"}
    for joint, other in enumerate(once.tolist()):
        assert skeleton.side(other) == swap[skeleton.side(joint)]
        name, partner = skeleton.joints[joint], skeleton.joints[other]
        assert name.removeprefix("left").removeprefix("right") == partner.removeprefix("left").removeprefix("right")
    assert {joint for limb in skeleton.limbs for joint in limb} == set(range(skeleton.num_joints))


@pytest.mark.parametrize("box", [(45, 35, 64), (40.3, 30.7, 50), (60, 20, 100.5), (50, 40, 33.3)])
@pytest.mark.parametrize("size", [64, 32])
def test_a_dot_lies_where_its_joint_is_said_to_be(box, size):
    x, y = box[0] + 0.15 * box[2], box[1] - 0.1 * box[2]
    canvas = crop_person(dot(x, y, 120, 120), box, size)
    assert canvas.shape == (3, canvas_side(size), canvas_side(size))
    factor, (joint,) = place_on_canvas(torch.tensor([[x, y]]), torch.tensor(box), size)
    assert float(factor) == pytest.approx(size / box[2])
    torch.testing.assert_close(brightest(canvas), joint.double(), atol=0.15, rtol=0)


def test_beyond_the_image_it_is_black():
    image = Image.new("RGB", (20, 20), (255, 255, 255))
    canvas = crop_person(image, (9.5, 9.5, 40), 40)
    assert canvas[:, 22:38, 22:38].min() == 255
    assert canvas[:, :15].max() == canvas[:, :, 45:].max() == 0


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(("scale", "angle"), [(1, 0), (1.3, 0), (0.8, 30), (1, -50), (1.2, 60)])
def test_pixels_and_joints_move_together(scale, angle, flip):
    box, size = (45, 45, 80), 64
    # A left knee that is not in the middle: a mirror moves it and makes it a right one.
    left, right = LSP.joints.index("left knee"), LSP.joints.index("right knee")
    place = (52.0, 41.0)
    canvas = crop_person(dot(*place, 90, 90), box, size)
    joints = torch.zeros(14, 2, dtype=torch.float64)
    joints[left] = torch.tensor(place)
    _, joints = place_on_canvas(joints, torch.tensor(box, dtype=torch.float64), size)
    visible = torch.arange(14) == left
    move = Move(scale=scale, angle=angle, flip=flip, row=0.5, column=0.5)
    image, joints, visible = move_person(canvas, joints, visible, move, size, LSP)
    now = right if flip else left
    assert visible.nonzero().flatten().tolist() == [now]
    torch.testing.assert_close(brightest(image), joints[now], atol=0.2, rtol=0)


@pytest.mark.parametrize("angle", [0.0, 35.0])
def test_the_mirrored_person_is_the_mirror_image_of_the_person(angle):
    canvas = torch.randint(0, 256, (3, 96, 96), dtype=torch.uint8)
    joints, visible = torch.rand(14, 2, dtype=torch.float64) * 96, torch.rand(14) < 0.7
    plain = move_person(canvas, joints, visible, Move(scale=1.1, angle=-angle, flip=False, row=0, column=0), 64, LSP)
    mirrored = move_person(canvas, joints, visible, Move(scale=1.1, angle=angle, flip=True, row=0, column=0), 64, LSP)
    torch.testing.assert_close(mirrored[0].int(), plain[0].flip(2).int(), atol=1, rtol=0)
    assert torch.equal(mirror_joints(mirrored[2], LSP), plain[2])
    x, y = plain[1].unbind(1)
    torch.testing.assert_close(mirror_joints(mirrored[1], LSP), torch.stack([63 - x, y], 1))


def test_without_a_move_augmentation_gives_what_evaluation_gives(tmp_path):
    write_lspet(tmp_path / "lspet", 6)
    dataset = replace(read(tmp_path / "lspet"), image_size=64)
    people, wanted = dataset.train, torch.tensor([2])
    (image,), (joints,), *_ = dataset.read(Pass(split="train", training=False), wanted)
    _, on_canvas = place_on_canvas(people.joints[2], people.boxes[2], 64)
    moved, moved_joints, _ = move_person(people.canvas(2, 64), on_canvas, people.visible[2], STILL, 64, LSP)
    assert torch.equal(moved, image)
    torch.testing.assert_close(moved_joints.float(), joints)


def test_how_far_people_are_moved():
    moves = [draw_person_move(PoseAugmentation(), seed=0, epoch=0, index=index) for index in range(2000)]
    squares = torch.tensor([1 / move.scale for move in moves])
    assert squares.min() >= 0.75 - 1e-6
    assert squares.max() <= 1.25 + 1e-6
    assert squares.mean() == pytest.approx(1, abs=0.02)
    angles = torch.tensor([move.angle for move in moves])
    assert (angles != 0).double().mean() == pytest.approx(0.6, abs=0.04)
    assert angles.abs().max() == 60
    assert angles[angles != 0].std() == pytest.approx(30 * 0.95, abs=2)
    assert sum(move.flip for move in moves) / 2000 == pytest.approx(0.5, abs=0.04)
    still = draw_person_move(PoseAugmentation(scale=0, rotation=0, flip=False), seed=0, epoch=0, index=0)
    assert (still.scale, still.angle, still.flip) == (1, 0, False)


def test_lengths_grow_with_the_person(tmp_path):
    write_lspet(tmp_path / "lspet", 6)
    dataset = replace(read(tmp_path / "lspet"), image_size=64)
    config = PoseAugmentation(rotation=20)
    still, augmented = (Pass(split="train", training=True, augmentation=it, seed=4, epoch=1) for it in (None, config))
    plain, moved = (dataset.read(run, torch.tensor([1])) for run in (still, augmented))
    shoulder, hip = (LSP.joints.index(name) for name in ("left shoulder", "right hip"))
    ratios = [float(made[3] / (made[1][0, shoulder] - made[1][0, hip]).norm()) for made in (plain, moved)]
    assert moved[3] != plain[3]
    assert ratios[0] == pytest.approx(ratios[1], rel=0.05)


def test_canvases_are_decoded_once_and_do_not_travel_to_workers(tmp_path, monkeypatch):
    write_lspet(tmp_path / "lspet", 6)
    people = read(tmp_path / "lspet").train
    first = people.canvas(1, 64)
    assert people.canvas(1, 64) is first
    assert torch.equal(pickle.loads(pickle.dumps(people)).canvas(1, 64), first)
    assert len(pickle.dumps(people)) < 20_000
    monkeypatch.setattr("spatialgrad.data.pose.MAX_BYTES_KEPT", 100)
    other = read(tmp_path / "lspet").train
    assert other.canvas(1, 64) is not other.canvas(1, 64)
