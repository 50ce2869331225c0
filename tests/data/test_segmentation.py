"""CamVid and Cityscapes: the real files, small trees in the published layout, and everything that can be wrong."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from spatialgrad.data import (
    CorruptDataError,
    DataError,
    MissingDataError,
    UnreachableError,
    get_dataset_files,
    list_datasets,
    load_dataset,
    load_for,
    masked_eval_batches,
    masked_train_batches,
)
from spatialgrad.data.segmentation import MaskFiles, MaskMemory
from spatialgrad.data.sets.cityscapes import CLASSES, LABEL_IDS
from spatialgrad.data.warp import Geometry
from support.data_files import tar_folder
from support.dense_files import HEIGHT, WIDTH, png, scene, train_id, write_camvid, write_cityscapes

GEOMETRY = Geometry(scale=(0.5, 2.0), rotation=10, flip=True)


@pytest.fixture
def camvid(tmp_path):
    write_camvid(tmp_path / "CamVid")
    return load_for("segmentation", "camvid", tmp_path)


@pytest.fixture(params=["labelIds", "labelTrainIds"])
def cityscapes(request, tmp_path):
    labels = (0, 7, 11, 21, 26, 33) if request.param == "labelIds" else (0, 3, 18, 255)
    write_cityscapes(tmp_path / "cityscapes", kind=request.param, labels=labels)
    return load_for("segmentation", "cityscapes", tmp_path)


@pytest.mark.realdata
def test_the_real_camvid(data_folder):
    dataset = load_for("segmentation", "camvid", data_folder)
    assert dataset.description == "CamVid 240×180"
    assert (len(dataset.train), len(dataset.test), dataset.num_classes) == (367, 233, 11)
    assert dataset.image_size == dataset.crop_size == (180, 240)
    present, counts = dataset.train.masks.unique(return_counts=True)
    assert present.tolist() == [*range(11), 255]
    names = list(dataset.classes)
    assert names[int(present[counts.argmax()])] == "road"
    image, mask = dataset.train.read(0)
    assert image.float().std() > 20
    sky, road = (image.float().mean(0)[mask == names.index(name)].mean() for name in ("sky", "road"))
    assert sky > road + 30  # the masks belong to the images
    rows = torch.arange(180)[:, None].expand(180, 240)
    assert rows[mask == names.index("sky")].float().mean() < rows[mask == names.index("road")].float().mean()


def test_camvid_as_it_is_laid_out(camvid, tmp_path):
    assert camvid.description == f"CamVid {WIDTH}×{HEIGHT}, 10/6 subset"
    assert isinstance(camvid.train, MaskMemory)
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
    assert len(load_for("segmentation", "camvid", tmp_path).train) == 10


@pytest.mark.parametrize("name", ["CamVid", "cityscapes"])
def test_an_archive_is_read_in_place(name, tmp_path):
    (write_camvid if name == "CamVid" else write_cityscapes)(tmp_path / name)
    folder = load_for("segmentation", name.lower(), tmp_path)
    (tmp_path / "elsewhere").mkdir()
    tar_folder(tmp_path / name, tmp_path / "elsewhere" / f"{name}.tar", "w")
    archive = load_for("segmentation", name.lower(), tmp_path / "elsewhere")
    for split in ("train", "test"):
        mine, other = getattr(archive, split), getattr(folder, split)
        assert len(mine) == len(other)
        for index in range(len(mine)):
            assert all(torch.equal(a, b) for a, b in zip(mine.read(index), other.read(index), strict=True))


def test_palette_masks_are_read_by_their_labels(tmp_path):
    folder = write_camvid(tmp_path / "CamVid")
    _, mask = scene(5000, (0, 1, 3, 8, 11))
    file = Image.fromarray(mask, "P")
    file.putpalette([7 * i % 256 for i in range(768)])
    file.save(folder / "trainannot" / "frame_000.png")
    found = load_for("segmentation", "camvid", tmp_path).train.read(0)[1]
    assert torch.equal(found, torch.from_numpy(np.where(mask == 11, 255, mask)))


def test_cityscapes_as_it_is_laid_out(cityscapes):
    assert cityscapes.description == "Cityscapes, 3/2 subset"
    assert isinstance(cityscapes.train, MaskFiles)
    assert (len(cityscapes.train), len(cityscapes.test), cityscapes.num_classes) == (3, 2, 19)
    assert (cityscapes.image_size, cityscapes.crop_size) == ((HEIGHT, WIDTH), (713, 713))
    assert "aachen_000000_000019_leftImg8bit.png" in cityscapes.train.name(0)
    assert "lindau" in cityscapes.test.name(0)  # val, not test


@pytest.mark.parametrize("label", range(34))
def test_label_ids_become_train_ids(label, tmp_path):
    write_cityscapes(tmp_path / "cityscapes", labels=(label,))
    _, mask = load_for("segmentation", "cityscapes", tmp_path).test.read(0)
    assert mask.unique().tolist() == [train_id(label)]


def test_the_nineteen_classes():
    """The table of the authors' scripts, by a few that are easily mixed up."""
    names = list(CLASSES)
    assert len(LABEL_IDS) == len(names) == 19
    expected = {7: "road", 8: "sidewalk", 17: "pole", 19: "traffic light", 22: "terrain", 25: "rider", 28: "bus"}
    expected |= {31: "train", 32: "motorcycle", 33: "bicycle"}
    assert {label: names[train_id(label)] for label in expected} == expected
    assert [train_id(label) for label in (0, 1, 6, 9, 14, 16, 18, 29, 30)] == [255] * 9


def test_some_of_the_images_keep_their_masks(cityscapes, camvid):
    for dataset in (cityscapes, camvid):
        chosen = dataset.train.select(torch.tensor([2, 0]))
        assert len(chosen) == 2
        for mine, theirs in ((0, 2), (1, 0)):
            assert chosen.name(mine) == dataset.train.name(theirs)
            pairs = zip(chosen.read(mine), dataset.train.read(theirs), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs)


def break_camvid(kind, folder):
    mask = folder / "trainannot" / "frame_003.png"
    image = folder / "train" / "frame_003.png"
    if kind == "no mask":
        mask.unlink()
    elif kind == "no image":
        image.unlink()
    elif kind == "truncated mask":
        mask.write_bytes(mask.read_bytes()[:-40])
    elif kind == "truncated image":
        image.write_bytes(image.read_bytes()[:200])
    elif kind == "other size":
        mask.write_bytes(png(np.zeros((HEIGHT, WIDTH - 8), dtype=np.uint8)))
    elif kind == "other image size":
        mask.write_bytes(png(np.zeros((24, 24), dtype=np.uint8)))
        image.write_bytes(png(np.zeros((24, 24, 3), dtype=np.uint8)))
    elif kind == "unknown label":
        labels = np.zeros((HEIGHT, WIDTH), dtype=np.uint8)
        labels[2, 5] = 12
        mask.write_bytes(png(labels))
    elif kind == "colours":
        mask.write_bytes(image.read_bytes())
    elif kind == "twice":
        (folder / "train" / "frame_003.jpg").write_bytes(image.read_bytes())
    elif kind == "no train":
        shutil.rmtree(folder / "train")
        shutil.rmtree(folder / "trainannot")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("no mask", r"train/frame_003.png has no mask of the same name in trainannot/"),
        ("no image", r"trainannot/frame_003.png has no image of the same name in train/"),
        ("truncated mask", r"trainannot/frame_003.png cannot be decoded"),
        ("truncated image", r"train/frame_003.png cannot be decoded"),
        ("other size", r"trainannot/frame_003.png is 48×40 pixels, but its image .*train/frame_003.png is 56×40"),
        ("other image size", r"train/frame_003.png is 24×24 pixels, but the first image of its data set is 56×40"),
        (
            "unknown label",
            r"trainannot/frame_003.png has the unknown label 12 at row 2, column 5; known are 0, 1, .*11",
        ),
        ("colours", r"trainannot/frame_003.png is no mask: it has pixels of the kind RGB"),
        ("twice", r"train/frame_003.jpg and frame_003.png have the same name"),
        ("no train", r"CamVid has no images in train/"),
    ],
)
def test_what_is_wrong_with_camvid_is_named(kind, message, tmp_path):
    break_camvid(kind, write_camvid(tmp_path / "CamVid"))
    with pytest.raises(CorruptDataError, match=message) as caught:
        load_for("segmentation", "camvid", tmp_path)
    assert "put the right file into" in str(caught.value)


@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        (lambda image, mask: mask.unlink(), r"_leftImg8bit.png has no mask gtFine/train/aachen/.*labelIds.png"),
        (lambda image, mask: image.unlink(), r"_gtFine_labelIds.png has no image in leftImg8bit/train/"),
        (lambda image, mask: shutil.rmtree(image.parents[1]), r"no images leftImg8bit/train/<city>"),
    ],
)
def test_what_is_missing_in_cityscapes_is_named_at_once(breaks, message, tmp_path):
    folder = write_cityscapes(tmp_path / "cityscapes")
    image, mask = cityscapes_files(folder)
    breaks(image, mask)
    with pytest.raises(CorruptDataError, match=message):
        load_for("segmentation", "cityscapes", tmp_path)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        (lambda image, mask: mask.write_bytes(mask.read_bytes()[:-30]), r"_gtFine_labelIds.png cannot be decoded"),
        (lambda image, mask: image.write_bytes(b"no image"), r"_leftImg8bit.png cannot be decoded"),
        (lambda image, mask: image.unlink(), r"_leftImg8bit.png cannot be read"),
        (
            lambda image, mask: mask.write_bytes(png(np.full((HEIGHT, WIDTH), 34, dtype=np.uint8))),
            r"_gtFine_labelIds.png has the unknown label 34 at row 0, column 0",
        ),
    ],
)
def test_what_is_damaged_in_cityscapes_is_named_when_it_is_read(breaks, message, workers, tmp_path):
    folder = write_cityscapes(tmp_path / "cityscapes")
    dataset = load_for("segmentation", "cityscapes", tmp_path)
    breaks(*cityscapes_files(folder))
    with pytest.raises(DataError, match=message) as caught:
        list(masked_train_batches(dataset.with_crop_size((16, 16)), 3, seed=0, epoch=0, num_workers=workers))
    assert "aachen_000001_000019" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def cityscapes_files(folder, number=1):
    frame = f"aachen_{number:06d}_000019"
    return (
        folder / "leftImg8bit" / "train" / "aachen" / f"{frame}_leftImg8bit.png",
        folder / "gtFine" / "train" / "aachen" / f"{frame}_gtFine_labelIds.png",
    )


@pytest.mark.parametrize("name", ["camvid", "cityscapes"])
def test_one_that_is_not_there_says_how_to_get_it(name, tmp_path):
    with pytest.raises(MissingDataError, match=rf"{name} is in none of (.*)\nBy hand: (put|register)"):
        load_for("segmentation", name, tmp_path)
    with pytest.raises(UnreachableError, match="By hand: "):
        get_dataset_files(name, tmp_path)


def test_each_task_has_its_data_sets(tmp_path):
    with pytest.raises(ValueError, match=r"camvid is a data set for segmentation, not for classification.*cifar10"):
        load_dataset("camvid", tmp_path)
    with pytest.raises(ValueError, match=r"cifar10 is a data set for classification, not for segmentation.*camvid"):
        load_for("segmentation", "cifar10", tmp_path)
    tasks = {info.name: info.task for info in list_datasets(tmp_path)}
    assert (tasks["camvid"], tasks["cityscapes"], tasks["cifar10"]) == (
        "segmentation",
        "segmentation",
        "classification",
    )


def test_training_batches(camvid):
    batches = masked_train_batches(camvid.with_crop_size((24, 32)), 4, seed=0, epoch=0, geometry=GEOMETRY)
    assert len(batches) == 3
    for images, masks in batches:
        assert (images.dtype, masks.dtype) == (torch.float32, torch.int64)
        assert images.shape[1:] == (3, 24, 32)
        assert masks.shape[1:] == (24, 32)
        assert set(masks.unique().tolist()) <= {0, 1, 3, 8, 255}
    assert sum(len(images) for images, _ in batches) == 10


def test_every_image_is_seen_once_and_not_moved_without_geometry(camvid):
    seen = torch.cat([masks for _, masks in masked_train_batches(camvid, 4, seed=3, epoch=1)])
    key = sorted(str(mask.tolist()) for mask in seen)
    assert key == sorted(str(mask.long().tolist()) for mask in camvid.train.masks)


def test_batches_depend_on_seed_and_epoch_and_not_on_ranks_workers_or_what_ran_before(camvid):
    options = {"seed": 5, "epoch": 2, "geometry": GEOMETRY}
    whole = list(masked_train_batches(camvid, 4, **options))
    torch.manual_seed(123)
    for again in (
        list(masked_train_batches(camvid, 4, num_workers=2, **options)),
        [*whole[:1], *masked_train_batches(camvid, 4, start=1, **options)],
    ):
        assert_same(again, whole)
    shares = [list(masked_train_batches(camvid, 4, rank=rank, world_size=2, **options)) for rank in range(2)]
    joined = torch.cat([images for pair in zip(*shares, strict=True) for images, _ in pair])
    assert torch.equal(joined, torch.cat([images for images, _ in whole]))
    other = list(masked_train_batches(camvid, 4, **{**options, "epoch": 3}))
    assert not torch.equal(other[0][0], whole[0][0])


def test_half_of_the_images_are_mirrored_and_their_masks_with_them(camvid):
    moved, still = (
        next(iter(masked_train_batches(camvid, 10, seed=0, epoch=0, geometry=geometry)))
        for geometry in (Geometry(flip=True), Geometry())
    )
    mirrored = 0
    for image, mask, raw, raw_mask in zip(*moved, *still, strict=True):
        flipped = torch.equal(image, raw.flip(2))
        assert flipped or torch.equal(image, raw)
        assert torch.equal(mask, raw_mask.flip(1) if flipped else raw_mask)
        mirrored += flipped
    assert 0 < mirrored < 10


def test_drawing_batches_leaves_the_global_random_state_alone(camvid):
    state = torch.get_rng_state()
    list(masked_train_batches(camvid, 4, seed=0, epoch=0, geometry=GEOMETRY))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_whole_test_images_each_once_over_all_ranks(camvid, world_size):
    batches = [
        batch
        for rank in range(world_size)
        for batch in masked_eval_batches(camvid, world_size, rank=rank, world_size=world_size)
    ]
    masks = [mask for _, masks in batches for mask in masks]
    assert sorted(str(m.tolist()) for m in masks) == sorted(str(m.long().tolist()) for m in camvid.test.masks)
    mean, std = (torch.tensor(value)[:, None, None] for value in (camvid.mean, camvid.std))
    for image, mask in ((image, mask) for images, masks in batches for image, mask in zip(images, masks, strict=True)):
        index = next(i for i, truth in enumerate(camvid.test.masks) if torch.equal(truth.long(), mask))
        torch.testing.assert_close(image * std + mean, camvid.test.images[index] / 255, atol=1e-5, rtol=0)


def test_an_empty_split_is_refused(camvid):
    with pytest.raises(CorruptDataError, match="the test split has no images"):
        replace(camvid, test=camvid.test.select(torch.arange(0)))


def test_a_compressed_archive_is_refused(tmp_path):
    path = Path(tmp_path / "CamVid")
    path.write_bytes(b"")
    with pytest.raises(DataError, match="neither a folder nor a plain tar archive"):
        load_for("segmentation", "camvid", tmp_path)


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
