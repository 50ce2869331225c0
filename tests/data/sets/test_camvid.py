"""CamVid: the real files, a small tree in the published layout, and everything that can be wrong."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from spatialgrad.data import CorruptDataError, MemorySplit, load_for
from support.dense_files import HEIGHT, WIDTH, png, scene, write_camvid


def load(root):
    return load_for("segmentation", "camvid", root)


@pytest.mark.realdata
def test_the_real_files(data_folder):
    dataset = load(data_folder)
    assert dataset.description == "CamVid 240×180"
    assert (len(dataset.train), len(dataset.test), dataset.num_classes) == (367, 233, 11)
    assert dataset.image_size == dataset.crop_size == (180, 240)
    present, counts = dataset.train.labels.unique(return_counts=True)
    assert present.tolist() == [*range(11), 255]
    names = list(dataset.classes)
    assert names[int(present[counts.argmax()])] == "road"
    image, mask = dataset.train.read(0)
    assert image.float().std() > 20
    sky, road = (image.float().mean(0)[mask == names.index(name)].mean() for name in ("sky", "road"))
    assert sky > road + 30  # the masks belong to the images
    rows = torch.arange(180)[:, None].expand(180, 240)
    assert rows[mask == names.index("sky")].float().mean() < rows[mask == names.index("road")].float().mean()


def test_it_is_read_as_published(tmp_path):
    write_camvid(tmp_path / "CamVid")
    camvid = load(tmp_path)
    assert camvid.description == f"CamVid {WIDTH}×{HEIGHT}, 10/6 subset"
    assert isinstance(camvid.train, MemorySplit)
    for number, (split, seed) in enumerate((("train", 5000), ("test", 4000))):
        image, mask = scene(seed + 1, (0, 1, 3, 8, 11))
        found_image, found_mask = getattr(camvid, split).read(1)
        assert torch.equal(found_image, torch.from_numpy(image).permute(2, 0, 1))
        assert torch.equal(found_mask, torch.from_numpy(np.where(mask == 11, 255, mask))), number
    assert camvid.train.name(1) == str(tmp_path / "CamVid" / "train" / "frame_001.png")


def test_what_is_no_image_is_left_alone(tmp_path):
    folder = write_camvid(tmp_path / "CamVid")
    for name in ("train.txt", "train/Thumbs.db", "train/._frame_000.png", "trainannot/notes.txt", "val/frame.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("no image")
    assert len(load(tmp_path).train) == 10


def test_palette_masks_are_read_by_their_labels(tmp_path):
    folder = write_camvid(tmp_path / "CamVid")
    _, mask = scene(5000, (0, 1, 3, 8, 11))
    file = Image.fromarray(mask, "P")
    file.putpalette([7 * i % 256 for i in range(768)])
    file.save(folder / "trainannot" / "frame_000.png")
    found = load(tmp_path).train.read(0)[1]
    assert torch.equal(found, torch.from_numpy(np.where(mask == 11, 255, mask)))


IMAGE, MASK = "train/frame_003.png", "trainannot/frame_003.png"
UNKNOWN = np.zeros((HEIGHT, WIDTH), dtype=np.uint8)
UNKNOWN[2, 5] = 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({MASK: None}, "train/frame_003.png: train/ and trainannot/ do not both have an image of this name"),
        ({IMAGE: None}, "trainannot/frame_003.png: train/ and trainannot/ do not both have an image of this name"),
        ({MASK: png(UNKNOWN)[:-40]}, "trainannot/frame_003.png cannot be decoded"),
        ({IMAGE: b"no image"}, "train/frame_003.png cannot be decoded"),
        (
            {MASK: png(UNKNOWN[:, 8:])},
            "train/frame_003.png is 56×40 pixels, its mask .*trainannot/frame_003.png is 48×40, and the first image of",
        ),
        ({MASK: png(UNKNOWN)}, r"unknown label 12 at row 2, column 5; known labels are 0, 1, .*11"),
        (
            {MASK: png(np.zeros((HEIGHT, WIDTH, 3), dtype=np.uint8))},
            "trainannot/frame_003.png is not a mask: its pixel format is RGB",
        ),
        ({"train": None, "trainannot": None}, "CamVid has no images in train/"),
    ],
)
def test_what_is_wrong_is_named(changes, message, tmp_path):
    folder = write_camvid(tmp_path / "CamVid")
    for name, content in changes.items():
        path = folder / name
        if content is not None:
            path.write_bytes(content)
        else:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(CorruptDataError, match=message) as caught:
        load(tmp_path)
    assert "To fix it: get the data again: put the folder CamVid of https://github.com" in str(caught.value)
