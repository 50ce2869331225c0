"""The digest of the data that a run has seen."""

import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from spatialgrad.data import fingerprint, load_dataset, load_for, validation_split
from support.data_files import image_bytes, tar_folder, write_cifar100, write_tree
from support.dense_files import png, write_camvid, write_cityscapes
from support.pose_files import write_lspet

BLACK = png(np.zeros((40, 56), dtype=np.uint8))
KINDS = {
    # Task, folder, how it is written, and how one of its files is changed.
    "cifar100": ("classification", "cifar-100-python", lambda f: write_cifar100(f, 100), None),
    "folder": ("classification", "pets", write_tree, ("train/cat/cat_0.JPEG", image_bytes(seed=77))),
    "camvid": ("segmentation", "CamVid", write_camvid, ("trainannot/frame_003.png", BLACK)),
    "cityscapes": (
        "segmentation",
        "cityscapes",
        write_cityscapes,
        ("gtFine/val/lindau/lindau_000001_000019_gtFine_labelIds.png", BLACK),
    ),
    "lspet": ("pose", "lspet", lambda f: write_lspet(f, 10), ("images/im00002.jpg", image_bytes(120, 150))),
}


def load(root, kind, ending=""):
    task, folder, *_ = KINDS[kind]
    return load_for(task, f"folder:{root / (folder + ending)}" if kind == "folder" else kind, root)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def root(kind, tmp_path):
    _, folder, write, _ = KINDS[kind]
    write(tmp_path / "here" / folder)
    return tmp_path / "here"


def test_it_depends_on_neither_place_nor_time_nor_packing(kind, root, tmp_path):
    expected = fingerprint(load(root, kind))
    assert len(expected) == 16
    there = tmp_path / "there" / "and" / "further"
    shutil.copytree(root, there)
    for path, _, files in os.walk(there):
        for file in files:
            os.utime(os.path.join(path, file), (1, 1))
    assert fingerprint(load(there, kind)) == expected
    folder = KINDS[kind][1]
    tar_folder(there / folder, there / f"{folder}.tar", "w")
    shutil.rmtree(there / folder)
    assert fingerprint(load(there, kind, ".tar")) == expected


def test_it_covers_what_is_selected_in_its_order(root, kind):
    data = load(root, kind)
    first, swapped = torch.arange(1), torch.tensor([1, 0])
    subsets = [
        data,
        replace(data, train=data.test, test=data.train),
        replace(data, train=data.train.select(first)),
        replace(data, test=data.test.select(first)),
        replace(data, train=data.train.select(swapped)),
    ]
    assert len({fingerprint(subset) for subset in subsets}) == 5
    assert fingerprint(replace(data)) == fingerprint(data)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "cifar100"], indirect=True)
def test_one_changed_file_changes_it(root, kind):
    before = fingerprint(load(root, kind))
    name, content = KINDS[kind][3]
    (root / KINDS[kind][1] / name).write_bytes(content)
    assert fingerprint(load(root, kind)) != before


def test_pixels_labels_and_annotations_change_it(tmp_path):
    data, people = load_dataset("fashion-mnist-mini"), load_for("pose", "figures-mini")
    before = fingerprint(data)
    images, labels = data.train.images.clone(), data.train.labels.clone()
    images[17, 0, 3, 3] += 1
    labels[17] = (labels[17] + 1) % 10
    changed = [replace(data.train, images=images), replace(data.train, labels=labels)]
    digests = {before, *(fingerprint(replace(data, train=train)) for train in changed)}
    assert len(digests) == 3
    assert fingerprint(validation_split(data, seed=0)) != fingerprint(validation_split(data, seed=1))
    joints = people.train.joints.clone()
    joints[3, 2] += 0.01
    assert fingerprint(replace(people, train=replace(people.train, joints=joints))) != fingerprint(people)


def test_content_counts_unless_it_is_more_than_a_gigabyte(tmp_path, monkeypatch):
    tree = write_tree(tmp_path / "pets")
    path = tree / "train" / "cat" / "cat_0.JPEG"
    before = fingerprint(load_dataset(f"folder:{tree}"))
    path.write_bytes(bytes(path.stat().st_size))
    assert fingerprint(load_dataset(f"folder:{tree}")) != before
    monkeypatch.setattr("spatialgrad.data.fingerprints.MAX_BYTES_READ", 100)
    before = fingerprint(load_dataset(f"folder:{tree}"))
    path.write_bytes(b"1" * path.stat().st_size)
    assert fingerprint(load_dataset(f"folder:{tree}")) == before
    path.write_bytes(bytes(path.stat().st_size + 1))
    assert fingerprint(load_dataset(f"folder:{tree}")) != before
    path.rename(path.with_name("cat_9.JPEG"))
    assert fingerprint(load_dataset(f"folder:{tree}")) != before


def test_it_is_the_same_on_every_machine():
    # Held, so that runs of an earlier version are recognized.
    assert fingerprint(load_dataset("fashion-mnist-mini")) == "ea291de36f3d375b"
