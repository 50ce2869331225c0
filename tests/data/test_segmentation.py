"""Images and masks, and batches of them."""

from dataclasses import replace

import pytest
import torch

from spatialgrad.data import CorruptDataError, eval_batches, load_for, train_batches
from spatialgrad.data.warp import Geometry
from support.data_files import tar_folder
from support.dense_files import write_camvid, write_cityscapes

GEOMETRY = Geometry(scale=(0.5, 2.0), rotation=10, flip=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_camvid(root / "CamVid")
    write_cityscapes(root / "cityscapes")
    return root


@pytest.fixture(scope="module")
def camvid(root):
    return load_for("segmentation", "camvid", root)


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["CamVid", "cityscapes"])
def test_an_archive_is_read_in_place(name, root, tmp_path):
    folder = load_for("segmentation", name.lower(), root)
    tar_folder(root / name, tmp_path / f"{name}.tar", "w")
    archive = load_for("segmentation", name.lower(), tmp_path)
    for mine, other in ((archive.train, folder.train), (archive.test, folder.test)):
        assert len(mine) == len(other)
        for index in range(len(mine)):
            assert_same(mine.read(index), other.read(index))


@pytest.mark.parametrize("name", ["camvid", "cityscapes"])
def test_some_of_the_images_keep_their_masks(name, root):
    train = load_for("segmentation", name, root).train
    chosen = train.select(torch.tensor([2, 0]))
    assert len(chosen) == 2
    for mine, theirs in ((0, 2), (1, 0)):
        assert chosen.name(mine) == train.name(theirs)
        assert_same(chosen.read(mine), train.read(theirs))


def test_training_batches(camvid):
    batches = train_batches(camvid.with_crop_size((24, 32)), 4, seed=0, epoch=0, augmentation=GEOMETRY)
    assert len(batches) == 3
    for images, masks in batches:
        assert (images.dtype, masks.dtype) == (torch.float32, torch.int64)
        assert images.shape[1:] == (3, 24, 32)
        assert masks.shape[1:] == (24, 32)
        assert set(masks.unique().tolist()) <= {0, 1, 3, 8, 255}
    assert sum(len(images) for images, _ in batches) == 10


def test_every_image_is_seen_once_and_not_moved_without_geometry(camvid):
    seen = torch.cat([masks for _, masks in train_batches(camvid, 4, seed=3, epoch=1)])
    key = sorted(str(mask.tolist()) for mask in seen)
    assert key == sorted(str(mask.long().tolist()) for mask in camvid.train.labels)


def test_half_of_the_images_are_mirrored_and_their_masks_with_them(camvid):
    moved, still = (
        next(iter(train_batches(camvid, 10, seed=0, epoch=0, augmentation=geometry)))
        for geometry in (Geometry(flip=True), Geometry())
    )
    mirrored = 0
    for image, mask, raw, raw_mask in zip(*moved, *still, strict=True):
        flipped = torch.equal(image, raw.flip(2))
        assert flipped or torch.equal(image, raw)
        assert torch.equal(mask, raw_mask.flip(1) if flipped else raw_mask)
        mirrored += flipped
    assert 0 < mirrored < 10


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_whole_test_images_each_once_over_all_ranks(camvid, world_size):
    batches = [
        batch
        for rank in range(world_size)
        for batch in eval_batches(camvid, world_size, rank=rank, world_size=world_size)
    ]
    masks = [mask for _, masks in batches for mask in masks]
    assert sorted(str(m.tolist()) for m in masks) == sorted(str(m.long().tolist()) for m in camvid.test.labels)
    mean, std = (torch.tensor(value)[:, None, None] for value in (camvid.mean, camvid.std))
    for image, mask in ((image, mask) for images, masks in batches for image, mask in zip(images, masks, strict=True)):
        index = next(i for i, truth in enumerate(camvid.test.labels) if torch.equal(truth.long(), mask))
        torch.testing.assert_close(image * std + mean, camvid.test.images[index] / 255, atol=1e-5, rtol=0)


def test_an_empty_split_is_refused(camvid):
    with pytest.raises(CorruptDataError, match="the test split has no images"):
        replace(camvid, test=camvid.test.select(torch.arange(0)))
