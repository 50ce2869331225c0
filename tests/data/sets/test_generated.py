"""The drawn data sets: the same every time, varied, and with labels that fit the pictures."""

import numpy as np
import pytest
import torch

from spatialgrad.data import load_dataset, load_for
from spatialgrad.data.batches import Pass
from spatialgrad.data.sets import generated
from spatialgrad.data.sets.generated import Canvas
from spatialgrad.train.tasks.keypoints import count_right

SETS = {"shapes-mini": "classification", "streets-mini": "segmentation", "figures-mini": "pose"}


@pytest.mark.parametrize("draw", [generated._shapes, generated._streets, generated._figures])
def test_the_same_is_drawn_again(draw):
    once, again = draw(6, seed=1), draw.__wrapped__(6, seed=1)
    assert once is not again
    assert all(map(torch.equal, once.content(), again.content()))


@pytest.mark.parametrize("name", SETS)
def test_no_image_is_drawn_twice(name):
    data = load_for(SETS[name], name)
    images = torch.cat([data.train.images, data.test.images])
    assert len({image.numpy().tobytes() for image in images}) == len(images)
    assert images.float().std() > 30


def test_shapes_are_balanced_and_stand_out():
    data = load_dataset("shapes-mini")
    assert torch.bincount(data.train.labels).tolist() == [300] * 6
    assert torch.bincount(data.test.labels).tolist() == [50] * 6
    assert data.train.images.shape == (1800, 3, 32, 32)
    assert (data.train.images.float().std((2, 3)).amax(1) > 12).all()


def test_classes_of_streets_have_their_colours():
    data = load_for("segmentation", "streets-mini")
    assert (len(data.train), len(data.test)) == (128, 40)
    images, masks = data.train.images.float(), data.train.labels
    assert set(masks.unique().tolist()) == set(range(7))
    sky, grass = (
        torch.stack([image[:, mask == number].mean(1) for image, mask in zip(images, masks, strict=True)])
        for number in (list(data.classes).index("sky"), list(data.classes).index("grass"))
    )
    assert (sky.argmax(1) == 2).all()
    assert (grass.argmax(1) == 1).float().mean() > 0.95


def test_joints_are_on_the_people():
    data = load_for("pose", "figures-mini")
    assert (len(data.train), len(data.test)) == (480, 96)
    people = data.read(Pass(split="test", training=False), torch.arange(0, 96, 12))
    for image, joints, visible, length in zip(*people, strict=True):
        assert visible.all()
        assert length > 10
        assert ((joints > 0) & (joints < 63)).all()
        # They face the viewer: their left is on the right.
        side = {name: joints[number] for number, name in enumerate(data.skeleton.joints)}
        assert side["left shoulder"][0] > side["right shoulder"][0]
        # Both knees have the colour of the trousers.
        places = [side[f"{each} knee"].round().int().tolist() for each in ("left", "right")]
        colours = [image[:, y, x] for x, y in places]
        assert (colours[0].float() - colours[1].float()).abs().max() < 80


def test_the_mean_pose_is_not_enough():
    """The chance that learning must beat: the mean position of every joint, for everybody."""
    data = load_for("pose", "figures-mini")
    _, known, *_ = data.read(Pass(split="train", training=False), torch.arange(480))
    _, joints, visible, lengths = data.read(Pass(split="test", training=False), torch.arange(96))
    mean = known.mean(0).expand_as(joints)
    right, scored = count_right(mean, joints, visible, lengths, data.skeleton.threshold)
    assert float((right / scored).mean()) < 0.4


def test_shapes_cover_what_they_should():
    def covered(draw):
        canvas = Canvas(40, 50, (0, 0, 0))
        draw(canvas)
        pixels = np.asarray(canvas._picture, dtype=float)[..., 0] / 255
        # In pixels of the result; classes are those of its pixels' centres.
        assert (canvas.classes() == 3).sum() == pytest.approx(pixels.sum() / 16, rel=0.1)
        return pixels.sum() / 16

    white = ((255, 255, 255), 3)
    assert covered(lambda canvas: canvas.disc((25, 20), 8, *white)) == pytest.approx(np.pi * 64, rel=0.05)
    assert covered(lambda canvas: canvas.box(9.5, 9.5, 29.5, 19.5, *white)) == pytest.approx(200, rel=0.05)
    assert covered(lambda canvas: canvas.line((10, 20), (40, 20), 3, *white)) == pytest.approx(208, rel=0.07)
