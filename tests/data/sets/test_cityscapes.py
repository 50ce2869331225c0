"""Cityscapes: small trees in the published layout, and everything that can be wrong."""

import shutil

import numpy as np
import pytest

from spatialgrad.data import CorruptDataError, DataError, load_for, train_batches
from spatialgrad.data.sets.cityscapes import CLASSES, LABEL_IDS
from support.dense_files import HEIGHT, WIDTH, png, train_id, write_cityscapes


def load(root):
    return load_for("segmentation", "cityscapes", root)


def files_of(folder, number=1):
    frame = f"aachen_{number:06d}_000019"
    return (
        folder / "leftImg8bit" / "train" / "aachen" / f"{frame}_leftImg8bit.png",
        folder / "gtFine" / "train" / "aachen" / f"{frame}_gtFine_labelIds.png",
    )


@pytest.mark.parametrize(("kind", "labels"), [("labelIds", (0, 7, 11, 21, 26, 33)), ("labelTrainIds", (0, 3, 18, 255))])
def test_it_is_read_as_published(kind, labels, tmp_path):
    write_cityscapes(tmp_path / "cityscapes", kind=kind, labels=labels)
    cityscapes = load(tmp_path)
    assert cityscapes.description == "Cityscapes, 3/2 subset"
    assert not cityscapes.in_memory
    assert (len(cityscapes.train), len(cityscapes.test), cityscapes.num_classes) == (3, 2, 19)
    assert (cityscapes.image_size, cityscapes.crop_size) == ((HEIGHT, WIDTH), (713, 713))
    assert "aachen_000000_000019_leftImg8bit.png" in cityscapes.train.name(0)
    assert "lindau" in cityscapes.test.name(0)  # val, not test


def test_label_ids_become_train_ids(tmp_path):
    write_cityscapes(tmp_path / "cityscapes")
    _, mask_file = files_of(tmp_path / "cityscapes")
    dataset = load(tmp_path)
    for label in range(34):
        mask_file.write_bytes(png(np.full((HEIGHT, WIDTH), label, dtype=np.uint8)))
        assert dataset.train.read(1)[1].unique().tolist() == [train_id(label)]


def test_the_nineteen_classes():
    """The table of the authors' scripts, by a few that are easily mixed up."""
    names = list(CLASSES)
    assert len(LABEL_IDS) == len(names) == 19
    expected = {7: "road", 8: "sidewalk", 17: "pole", 19: "traffic light", 22: "terrain", 25: "rider", 28: "bus"}
    expected |= {31: "train", 32: "motorcycle", 33: "bicycle"}
    assert {label: names[train_id(label)] for label in expected} == expected
    assert [train_id(label) for label in (0, 1, 6, 9, 14, 16, 18, 29, 30)] == [255] * 9


@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        (lambda image, mask: mask.unlink(), r"_leftImg8bit.png has no mask gtFine/train/aachen/.*labelIds.png"),
        (lambda image, mask: image.unlink(), r"_gtFine_labelIds.png has no image in leftImg8bit/train/"),
        (lambda image, mask: shutil.rmtree(image.parents[1]), r"no images leftImg8bit/train/<city>"),
    ],
)
def test_what_is_missing_is_named_at_once(breaks, message, tmp_path):
    folder = write_cityscapes(tmp_path / "cityscapes")
    image, mask = files_of(folder)
    breaks(image, mask)
    with pytest.raises(CorruptDataError, match=message):
        load(tmp_path)


@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        (lambda image, mask: mask.write_bytes(mask.read_bytes()[:-30]), r"_gtFine_labelIds.png cannot be decoded"),
        (lambda image, mask: image.write_bytes(b"no image"), r"_leftImg8bit.png cannot be decoded"),
        (lambda image, mask: image.unlink(), r"_leftImg8bit.png cannot be read"),
        (
            lambda image, mask: mask.write_bytes(png(np.full((HEIGHT, WIDTH), 34, dtype=np.uint8))),
            r"_gtFine_labelIds.png contains the unknown label 34 at row 0, column 0",
        ),
    ],
)
def test_what_is_damaged_is_named_when_it_is_read(breaks, message, tmp_path):
    folder = write_cityscapes(tmp_path / "cityscapes")
    dataset = load(tmp_path)
    breaks(*files_of(folder))
    with pytest.raises(DataError, match=message) as caught:
        list(train_batches(dataset.with_crop_size((16, 16)), 3, seed=0, epoch=0))
    assert "aachen_000001_000019" in str(caught.value)
    assert "Traceback" not in str(caught.value)
