"""Leeds Sports Pose Extended: real, small and damaged."""

import numpy as np
import pytest
import torch

from spatialgrad.data import CorruptDataError, MissingDataError
from spatialgrad.data.pose import AnnotationWarning
from spatialgrad.data.registry import load_for
from spatialgrad.data.sets.lspet import SKELETON as LSP
from spatialgrad.data.sets.lspet import read, torso_lengths
from support.pose_files import write_lspet, write_tar


@pytest.mark.realdata
def test_the_real_one(data_folder):
    dataset = load_for("pose", "lspet", data_folder)
    assert dataset.description == "LSPe 1,500, every fifth image held out for testing"
    assert (len(dataset.train), len(dataset.test)) == (1200, 300)
    first = dataset.train
    # The annotation of im00001: right ankle and head top, which joints.mat has at these places.
    assert first.joints[0, 0].tolist() == pytest.approx([67.976, 183.694], abs=1e-3)
    assert first.joints[0, 13].tolist() == pytest.approx([84.118, 72.8], abs=1e-3)
    assert first.images.name(0).endswith("images/im00001.jpg")
    assert dataset.test.images.name(0).endswith("images/im00005.jpg")
    seen = torch.cat([dataset.train.visible, dataset.test.visible])
    assert int(seen.sum()) == 18_590
    # An elbow is nearer to the wrist of its own side than to the other one: joints are not mixed up.
    elbow, own, other = (LSP.joints.index(name) for name in ("left elbow", "left wrist", "right wrist"))
    all_there = seen[:, [elbow, own, other]].all(1)
    joints = torch.cat([dataset.train.joints, dataset.test.joints])[all_there]
    nearer = (joints[:, elbow] - joints[:, own]).norm(dim=1) < (joints[:, elbow] - joints[:, other]).norm(dim=1)
    assert nearer.double().mean() > 0.85
    canvas = dataset.test.canvas(7, 64)
    assert canvas.shape == (3, 96, 96)
    assert canvas.float().std() > 10


@pytest.mark.parametrize("archive", [False, True])
def test_a_small_one_from_a_folder_and_from_an_archive(archive, tmp_path):
    table = write_lspet(tmp_path / "lspet", 11)
    if archive:
        write_tar(tmp_path / "lspet", tmp_path / "elsewhere.tar")
    dataset = read(tmp_path / ("elsewhere.tar" if archive else "lspet"))
    assert dataset.description == "LSPe 11, every fifth image held out for testing"
    assert (len(dataset.train), len(dataset.test)) == (9, 2)
    np.testing.assert_allclose(dataset.test.joints[0], table[:, :2, 4])
    np.testing.assert_allclose(dataset.train.joints[8], table[:, :2, 10])
    assert dataset.train.visible.all()
    x, y, side = dataset.train.boxes[0].tolist()
    low, high = table[:, :2, 0].min(0), table[:, :2, 0].max(0)
    assert [x, y] == pytest.approx(((low + high) / 2).tolist())
    assert side == pytest.approx(1.4 * (high - low).max())
    assert dataset.train.canvas(0, 64).shape == (3, 96, 96)


def test_the_torso_is_the_farthest_pair_of_a_visible_shoulder_and_a_visible_hip():
    joints = torch.zeros(3, 14, 2)
    joints[:, LSP.joints.index("left shoulder")] = torch.tensor([3.0, 4.0])
    joints[:, LSP.joints.index("right shoulder")] = torch.tensor([0.0, 2.0])
    visible = torch.ones(3, 14, dtype=torch.bool)
    visible[1, LSP.joints.index("left shoulder")] = False
    visible[2, [2, 3]] = False
    assert torso_lengths(joints, visible).tolist() == [5, 2, 0]


def test_hidden_joints_and_people_without_any(tmp_path):
    def hide(table):
        table[:, 2, 1] = 0
        table[3:, 2, 2] = 0
        return table

    write_lspet(tmp_path / "lspet", 6, hide)
    dataset = read(tmp_path / "lspet")
    assert dataset.train.visible.sum(1).tolist() == [14, 0, 3, 14, 14]
    # Nothing says where the second person is, so that the square holds the whole image, which is 120 × 150.
    assert dataset.train.boxes[1].tolist() == [59.5, 74.5, 150]
    assert dataset.train.lengths[1] == 0


def test_hidden_joints_that_are_no_numbers_do_no_harm(tmp_path):
    def hide(table):
        table[3, :2, 1], table[3, 2, 1] = np.nan, 0
        return table

    write_lspet(tmp_path / "lspet", 6, hide)
    people = read(tmp_path / "lspet").train
    assert people.visible.sum(1).tolist() == [14, 13, 14, 14, 14]
    for values in (people.joints, people.boxes, people.lengths):
        assert values.isfinite().all()


def test_a_joint_outside_of_the_image_is_left_out_and_reported_with_its_file(tmp_path):
    def move(table):
        table[4, :2, 2] = -40, 30
        table[7, :2, 3] = 60, 151.5  # beyond the last row by two pixels
        table[8, :2, 3] = 60, 149.9  # rounding
        return table

    write_lspet(tmp_path / "lspet", 6, move)
    with pytest.warns(AnnotationWarning, match=r"2 joints .* images/im00003.jpg, images/im00004.jpg in .*lspet"):
        dataset = read(tmp_path / "lspet")
    assert (~dataset.train.visible).nonzero().tolist() == [[2, 4], [3, 7]]
    # The square is around what is left.
    assert dataset.train.boxes[2, 2] < 300


def test_images_and_annotations_that_do_not_match(tmp_path):
    write_lspet(tmp_path / "lspet", 6)
    (tmp_path / "lspet/images/im00003.jpg").unlink()
    (tmp_path / "lspet/images/im00006.jpg").unlink()
    with pytest.raises(MissingDataError, match=r"no images/im00003.jpg.*1 more"):
        load_for("pose", "lspet", tmp_path)
    write_lspet(tmp_path / "other", 6, lambda table: table[..., :5])
    with pytest.raises(CorruptDataError, match=r"6 images for 5 annotations in joints.mat"):
        read(tmp_path / "other")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda table: table[:13], r"\(14 joints, 3, images\), not \(13, 3, 6\)"),
        (lambda table: table + 0.5, "0 or 1"),
        (lambda table: np.where(table == table[2, 0, 3], np.nan, table), "im00004.jpg has non-finite coordinates"),
    ],
)
def test_wrong_annotations(spoil, message, tmp_path):
    write_lspet(tmp_path / "lspet", 6, spoil)
    with pytest.raises(CorruptDataError, match=message):
        read(tmp_path / "lspet")


def test_damaged_files_are_named(tmp_path):
    write_lspet(tmp_path / "lspet", 6)
    image = tmp_path / "lspet/images/im00002.jpg"
    whole = image.read_bytes()
    image.write_bytes(whole[:400])
    with pytest.raises(CorruptDataError, match=r"im00002.jpg"):
        read(tmp_path / "lspet").train.canvas(1, 64)
    image.write_bytes(b"no image")
    with pytest.raises(CorruptDataError, match=r"im00002.jpg"):
        read(tmp_path / "lspet")
    (tmp_path / "lspet/joints.mat").write_bytes(b"no matrix")
    with pytest.raises(CorruptDataError, match=r"joints.mat"):
        read(tmp_path / "lspet")
    (tmp_path / "lspet/joints.mat").unlink()
    with pytest.raises(MissingDataError, match=r"joints.mat"):
        read(tmp_path / "lspet")
