"""Images and masks, and batches of them."""

from dataclasses import replace

import pytest
import torch

from spatialgrad.data import eval_batches, load_for, train_batches
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


def test_evaluation_is_on_whole_images(camvid):
    images, masks = (torch.cat(tensors) for tensors in zip(*eval_batches(camvid, 4), strict=True))
    assert torch.equal(masks, camvid.test.labels.long())
    mean, std = (torch.tensor(value)[:, None, None] for value in (camvid.mean, camvid.std))
    torch.testing.assert_close(images * std + mean, camvid.test.images / 255, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["CamVid", "cityscapes"])
def test_selections_and_archives_keep_the_masks(name, root, tmp_path):
    folder = load_for("segmentation", name.lower(), root)
    tar_folder(root / name, tmp_path / f"{name}.tar", "w")
    archive = load_for("segmentation", name.lower(), tmp_path)
    chosen = archive.train.select(torch.tensor([2, 0]))
    for mine, theirs in ((0, 2), (1, 0)):
        assert chosen.name(mine).endswith(folder.train.name(theirs).removeprefix(f"{root / name}"))
        for a, b in zip(chosen.read(mine), folder.train.read(theirs), strict=True):
            assert torch.equal(a, b)


def test_an_empty_split_is_refused(camvid):
    with pytest.raises(ValueError, match="the test split has no images"):
        replace(camvid, test=camvid.test.select(torch.arange(0)))
