"""MPII: the real annotations, and small trees in both layouts, whole and damaged."""

import tarfile

import numpy as np
import pytest
import torch

from spatialgrad.data import CorruptDataError, MissingDataError
from spatialgrad.data.pose import AnnotationWarning
from spatialgrad.data.registry import load_for
from spatialgrad.data.sets.mpii import SKELETON as MPII
from spatialgrad.data.sets.mpii import read, read_h5
from support.pose_files import mpii_person, write_mpii_h5, write_mpii_mat


@pytest.fixture(scope="module")
def real(data_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mpii")
    with tarfile.open(f"{data_folder}/mpii_annot.tar") as tar:
        for name in ("valid.h5", "valid_images.txt", "train_images.txt"):
            (folder / name).write_bytes(tar.extractfile(f"mpii_annot/{name}").read())
    return folder


@pytest.mark.realdata
def test_the_real_annotations(real):
    people = read_h5(real / "valid.h5")
    images, joints, heads = people["imgname"].tolist(), people["part"], people["normalize"]
    assert joints.shape == (2958, 16, 2)
    assert images == (real / "valid_images.txt").read_text().split()
    assert not set(images) & set((real / "train_images.txt").read_text().split())
    assert images[0] == "005808361.jpg"
    assert joints[0, 9].tolist() == [962, 80]  # head top, counted from 1
    assert people["center"][0].tolist() == pytest.approx([966, 410.777], abs=1e-3)
    # Joints without coordinates, and not those that something hides.
    annotated = (joints != 0).any(2)
    assert int((~annotated).sum()) == 3088
    # A head is about as large as from the neck to the top: the published sizes are heads' and not bodies'.
    both = annotated[:, 8] & annotated[:, 9]
    length = np.linalg.norm(joints[:, 8] - joints[:, 9], axis=1)[both]
    assert 0.6 < np.median(heads[both] / length) < 0.9
    # A person's joints lie in the square of its scale.
    inside = np.abs(joints - people["center"][:, None]).max(2) < 125 * people["scale"][:, None] * 1.2
    assert inside[annotated].mean() > 0.97


@pytest.mark.parametrize("names", ["bytes", "codes"])
def test_h5(names, tmp_path):
    write_mpii_h5(tmp_path / "mpii", names=names)
    dataset = load_for("pose", "mpii", tmp_path)
    assert dataset.description == "MPII, 6 and 4 people"
    assert dataset.skeleton is MPII
    _, joints, centre, scale, head = mpii_person(6)
    np.testing.assert_allclose(dataset.test.joints[0], joints - 1)
    assert dataset.test.boxes[0].tolist() == pytest.approx([centre[0] - 1, centre[1] - 1 + 15 * scale, 250 * scale])
    assert float(dataset.test.lengths[0]) == pytest.approx(head)
    # Two people of one image.
    assert dataset.train.images.name(0) == dataset.train.images.name(1)
    assert dataset.train.canvas(0, 64).shape == (3, 96, 96)


def test_unannotated_joints_of_h5(tmp_path):
    def change(split, arrays):
        arrays["part"][1, 4] = 0
        arrays["visible"][:] = 0

    write_mpii_h5(tmp_path / "mpii", change=change)
    visible = read(tmp_path / "mpii").train.visible
    assert (~visible).nonzero().tolist() == [[1, 4]]


def test_a_joint_outside_of_the_image(tmp_path):
    def change(split, arrays):
        if split == "valid":
            arrays["part"][2, 9] = 50, -30

    write_mpii_h5(tmp_path / "mpii", change=change)
    with pytest.warns(AnnotationWarning, match=r"1 joints .* images/000000008.jpg in .*mpii"):
        dataset = read(tmp_path / "mpii")
    assert (~dataset.test.visible).nonzero().tolist() == [[2, 9]]


def test_an_annotation_without_an_image(tmp_path):
    write_mpii_h5(tmp_path / "mpii")
    (tmp_path / "mpii/images/000000003.jpg").unlink()
    with pytest.raises(MissingDataError, match=r"images/000000003.jpg not found, but .*train.h5"):
        read(tmp_path / "mpii")


def shorten(key, cut):
    def change(split, arrays):
        arrays[key] = cut(arrays[key])

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shorten("part", lambda a: a[:, :14]), r"train.h5: 'part' must have the shape \(6, 16, 2\), not \(6, 14, 2\)"),
        (shorten("center", lambda a: a[:3]), r"train.h5: 'center' must have the shape \(6, 2\)"),
        (shorten("scale", lambda a: a * 0), r"train.h5: the person in 000000001.jpg has no centre, scale or head"),
        (shorten("part", lambda a: a * np.nan), "a joint in .*000000001.jpg has non-finite coordinates"),
        (lambda split, arrays: arrays.pop("normalize"), r"train.h5 cannot be read .*'normalize'"),
    ],
)
def test_wrong_h5(change, message, tmp_path):
    write_mpii_h5(tmp_path / "mpii", change=change)
    with pytest.raises(CorruptDataError, match=message):
        read(tmp_path / "mpii")


def test_what_is_no_h5_is_named(tmp_path):
    train = tmp_path / "train.h5"
    train.write_bytes(b"no h5")
    with pytest.raises(CorruptDataError, match=r"train.h5 cannot be read"):
        read_h5(train)


def test_the_published_mat(tmp_path):
    write_mpii_mat(tmp_path / "mpii")
    dataset = load_for("pose", "mpii", tmp_path)
    assert dataset.description == "MPII, every eighth video held out"
    names = [[split.images.name(index)[-13:] for index in range(len(split))] for split in (dataset.train, dataset.test)]
    assert names == [["000000000.jpg", "000000001.jpg"], ["000000002.jpg", "000000003.jpg"]]
    _, joints, centre, scale, head = mpii_person(1)
    np.testing.assert_allclose(dataset.train.joints[1], joints - 1)
    assert dataset.train.boxes[1].tolist() == pytest.approx([centre[0] - 1, centre[1] - 1 + 15 * scale, 250 * scale])
    assert float(dataset.train.lengths[1]) == pytest.approx(head)
    # Hidden joints count; those that are not annotated do not.
    assert (~dataset.train.visible).nonzero().tolist() == [[0, MPII.joints.index("pelvis")]]


def test_the_published_mat_with_the_usual_list(tmp_path):
    write_mpii_mat(tmp_path / "mpii")
    (tmp_path / "mpii/valid_images.txt").write_text("000000001.jpg\n000000003.jpg\n")
    dataset = read(tmp_path / "mpii")
    assert dataset.description == "MPII, tested on the images of valid_images.txt"
    assert [dataset.test.images.name(index)[-13:] for index in (0, 1)] == ["000000001.jpg", "000000003.jpg"]


def test_h5_and_mat_say_the_same_about_a_person(tmp_path):
    write_mpii_h5(tmp_path / "a")
    write_mpii_mat(tmp_path / "b")
    (tmp_path / "b/valid_images.txt").write_text("000000003.jpg\n")
    one, other = read(tmp_path / "a").train, read(tmp_path / "b").train
    for name in ("joints", "visible", "boxes", "lengths"):
        torch.testing.assert_close(getattr(one, name)[2], getattr(other, name)[2])


@pytest.mark.parametrize(
    "spoil",
    [lambda release: {"annolist": release["annolist"]}, lambda release: {**release, "annolist": np.zeros((1, 5))}],
)
def test_wrong_mat(spoil, tmp_path):
    write_mpii_mat(tmp_path / "mpii", in_mat=spoil)
    with pytest.raises(CorruptDataError, match=r"mpii_human_pose_v1_u12_1.mat cannot be read"):
        read(tmp_path / "mpii")


def test_an_image_that_is_elsewhere_is_not_read(tmp_path):
    write_mpii_h5(tmp_path / "mpii", change=shorten("imgname", lambda a: np.array([b"../../secret.jpg"] * len(a))))
    with pytest.raises(MissingDataError, match=r"secret.jpg not found"):
        read(tmp_path / "mpii")


def test_no_annotations_at_all(tmp_path):
    (tmp_path / "mpii").mkdir()
    with pytest.raises(MissingDataError, match=r"neither annot/train.h5"):
        load_for("pose", "mpii", tmp_path)
