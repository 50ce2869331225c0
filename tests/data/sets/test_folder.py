"""Class folders: of ImageNet's layout and others, in folders and archives, with everything that users leave in them."""

import logging
import os
import shutil
import tarfile

import pytest
import torch

from spatialgrad.data import (
    CorruptDataError,
    DataError,
    MissingDataError,
    UnreachableError,
    eval_batches,
    get_dataset_files,
    load_dataset,
    train_batches,
)
from support.data_files import image_bytes, silent, tar_folder, write_tree


@pytest.fixture
def tree(tmp_path):
    return write_tree(tmp_path / "pets")


def images_of(dataset, **options):
    return torch.cat([images for images, _ in eval_batches(dataset, 4, **options)])


def put(folder, *names, content=None):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(image_bytes() if content is None else content)


def test_classes_are_the_folders_in_the_order_of_their_names(tree, caplog):
    data = load_dataset(f"folder:{tree}")
    assert data.class_names == ("cat", "dog", "owl")
    assert (len(data.train), len(data.test)) == (18, 9)
    assert data.train.labels.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert data.description == "pets, 3 classes"
    assert (data.image_size, data.channels) == (224, 3)
    assert data.augmentation.resized_crop == (0.08, 1.0)
    assert data.train.files.name(7) == str(tree / "train" / "dog" / "dog_1.JPEG")
    assert not caplog.records
    images, _ = next(iter(eval_batches(data, 2)))
    assert images.shape == (2, 3, 224, 224)
    small = data.with_image_size(48)
    images, _ = next(iter(train_batches(small, 4, seed=0, epoch=0, augmentation=data.augmentation)))
    assert images.shape == (4, 3, 48, 48)


@pytest.mark.parametrize(("nested", "flat"), [(False, False), (True, False), (True, True)])
def test_a_plain_archive_is_read_in_place(tree, tmp_path, nested, flat):
    tree = tree / "train" if flat else tree
    archive = tmp_path / "packed" / "pets.tar"
    archive.parent.mkdir()
    with tarfile.open(archive, "w") as tar:
        tar.add(tree, arcname="pets" if nested else ".")
    packed, unpacked = load_dataset(f"folder:{archive}", image_size=32), load_dataset(f"folder:{tree}", image_size=32)
    assert packed.class_names == ("cat", "dog", "owl")
    assert torch.equal(packed.train.labels, unpacked.train.labels)
    assert torch.equal(images_of(packed), images_of(unpacked))
    assert [path.name for path in archive.parent.iterdir()] == ["pets.tar"]


def test_a_compressed_archive_is_unpacked_by_get(tree, tmp_path):
    archive = tar_folder(tree, tmp_path / "pets.tar.gz", "w:gz")
    root = tmp_path / "root"
    with pytest.raises(MissingDataError) as caught:
        load_dataset(f"folder:{archive}", root)
    assert str(caught.value) == (
        f"{archive} is compressed, and {root / 'pets'} does not exist.\n"
        f"Extract it: spatialgrad data get folder:{archive} --data.root {root}"
    )
    assert get_dataset_files(f"folder:{archive}", root, progress=silent) == root / "pets"
    packed = load_dataset(f"folder:{archive}", root, image_size=32)
    assert torch.equal(images_of(packed), images_of(load_dataset(f"folder:{tree}", image_size=32)))


@pytest.mark.parametrize("layout", ["flat", "train only", "flat in a folder"])
def test_without_test_images_a_fifth_is_held_out_and_one_line_says_so(layout, tree, tmp_path, caplog):
    shutil.rmtree(tree / "val")
    place = {"flat": tree / "train", "train only": tree, "flat in a folder": tmp_path / "outer"}[layout]
    if layout == "flat in a folder":
        shutil.copytree(tree / "train", place / "inner")
    put(place, "__MACOSX/train/cat/._1.jpg", ".DS_Store")
    data = load_dataset(f"folder:{place}")
    assert data.class_names == ("cat", "dog", "owl")
    assert (len(data.train), len(data.test)) == (14, 4)
    assert set(data.test.labels.tolist()) == {0, 1, 2}
    names = [data.train.files.relative_names(), data.test.files.relative_names()]
    assert len({*names[0], *names[1]}) == 18
    assert data.description == f"{place.name}, 3 classes, 20% of the images held out for testing"
    (record,) = caplog.records
    assert "has no folder of test images (val/<class>/): 4 of its 18 images are held out" in record.getMessage()
    again = load_dataset(f"folder:{place}")
    assert again.test.files.relative_names() == names[1], "always the same ones"


def test_test_images_without_classes_are_not_a_split(tree, caplog):
    shutil.rmtree(tree / "val")
    put(tree, "test/1.jpg", "test/2.jpg")
    data = load_dataset(f"folder:{tree}")
    assert (len(data.train), len(data.test)) == (14, 4)
    assert "held out" in caplog.text


def test_too_few_images_to_hold_some_out_are_named(tmp_path):
    put(tmp_path / "few", "cat/1.jpg", "dog/1.jpg")
    with pytest.raises(CorruptDataError, match=r"too few images of cat to hold out 20% .*into val/<class>/"):
        load_dataset(f"folder:{tmp_path / 'few'}")


def test_a_class_may_be_called_train(tmp_path):
    put(tmp_path / "vehicles", *(f"{name}/{number}.jpg" for name in ("car", "train", "bus") for number in range(5)))
    assert load_dataset(f"folder:{tmp_path / 'vehicles'}").class_names == ("bus", "car", "train")


def test_what_programs_leave_behind_is_no_class(tree):
    put(tree, "train/.ipynb_checkpoints/cat_0-checkpoint.JPEG", "train/__MACOSX/cat/._cat_0.JPEG", "train/cat/._1.jpg")
    put(tree.parent, "__MACOSX/pets/train/cat/._cat_0.JPEG", ".idea/x/1.jpg")
    for place in (tree, tree.parent):  # also where the data set is the only other folder
        data = load_dataset(f"folder:{place}")
        assert data.class_names == ("cat", "dog", "owl")
        assert len(data.train) == 18


def test_other_files_are_counted_in_one_line_and_other_folders_ignored(tree, caplog):
    put(tree, "train/cat/images/more.png", "train/dog/1.TIFF", "train/owl/2.gif", "extra.jpg", "extra/cat/1.jpg")
    put(tree, "train/cat/notes.txt", "val/cat/a.txt", "val/cat/raw.dng", content=b"no image")
    (tree / "val").rename(tree / "valid")  # as some name it
    data = load_dataset(f"folder:{tree}", image_size=16)
    assert len(data.test) == 9
    assert torch.bincount(data.train.labels).tolist() == [7, 7, 7]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == f"{tree}: 3 files are not read as images (2 × .txt, 1 × .dng)"


def test_links_may_be_classes_and_lead_in_a_circle(tree, tmp_path):
    (tree / "train" / "cat" / "circle").symlink_to(tree)
    shutil.move(tree / "val" / "cat", tmp_path / "elsewhere")
    (tree / "val" / "cat").symlink_to(tmp_path / "elsewhere")
    data = load_dataset(f"folder:{tree}")
    assert (len(data.train), len(data.test)) == (18, 9)


@pytest.mark.parametrize(("workers", "content"), [(0, image_bytes()[:400]), (1, b"not an image")])
def test_a_damaged_image_is_named_whoever_decodes_it(tree, workers, content):
    path = tree / "val" / "dog" / "dog_1.JPEG"
    path.write_bytes(content)
    with pytest.raises(CorruptDataError) as caught:
        images_of(load_dataset(f"folder:{tree}"), workers=workers)
    assert str(caught.value).startswith(f"{path} cannot be decoded")
    assert "Traceback" not in str(caught.value)


def test_an_image_that_vanished_and_an_archive_that_lost_its_end_are_named(tree, tmp_path):
    archive = tar_folder(tree, tmp_path / "pets.tar", "w")
    data, packed = load_dataset(f"folder:{tree}"), load_dataset(f"folder:{archive}")
    (tree / "val" / "dog" / "dog_1.JPEG").unlink()
    with pytest.raises(DataError, match=r"dog_1\.JPEG cannot be read"):
        images_of(data)
    os.truncate(archive, packed.test.files.spans[-1].tolist()[0] + 10)
    with pytest.raises(CorruptDataError, match=r"pets\.tar/pets/.* cannot be decoded"):
        images_of(packed)
    with pytest.raises(CorruptDataError, match=r"pets\.tar is truncated"):
        load_dataset(f"folder:{archive}")


def rename_splits(tree):
    (tree / "train").rename(tree / "Training")
    (tree / "val").rename(tree / "Testing")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda tree: shutil.rmtree(tree / "train" / "owl"), r"val/owl is a class that train/ does not have"),
        (lambda tree: (tree / "train" / "elk").mkdir(), r"train/elk contains no images .*or remove the folder"),
        (lambda tree: put(tree, "train/elk/1.dng"), r"train/elk contains no images .*add some that end in \.jpg"),
        (lambda tree: put(tree, "val/elk/1.dng"), r"val/elk contains no images"),
        (rename_splits, r"Testing and Training, each with the folders cat, dog, owl: name them train/ and val/"),
        (lambda tree: shutil.rmtree(tree), r"pets contains no images. They must be in <class>/, or in train/<class>/"),
    ],
)
def test_what_makes_no_sense_is_named_with_a_remedy(tree, spoil, message):
    spoil(tree)
    tree.mkdir(exist_ok=True)
    with pytest.raises(CorruptDataError, match=message) as caught:
        load_dataset(f"folder:{tree}")
    assert "To fix it" not in str(caught.value)


def test_a_single_class_and_other_archives_are_refused(tree, tmp_path):
    with pytest.raises(CorruptDataError, match="cat contains no images"):
        load_dataset(f"folder:{tree / 'train' / 'cat'}")
    shutil.copytree(tree / "train" / "cat", tmp_path / "one" / "cat")
    with pytest.raises(CorruptDataError, match="one contains the only class cat: put images of at least two classes"):
        load_dataset(f"folder:{tmp_path / 'one'}")
    (tmp_path / "images.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match="neither a folder nor an uncompressed tar archive"):
        load_dataset(f"folder:{tmp_path / 'images.zip'}")


@pytest.mark.parametrize(
    ("function", "name"),
    [(load_dataset, "absent"), (load_dataset, "absent.tar.gz"), (get_dataset_files, "absent.tar")],
)
def test_a_path_that_is_missing_is_named_with_its_flag(function, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "root"
    for path, looked_at in ((name, f"{tmp_path / name} and {root / name}"), (tmp_path / name, tmp_path / name)):
        with pytest.raises(MissingDataError) as caught:
            function(f"folder:{path}", root)
        first, second = str(caught.value).split("\n")
        assert first == f"{looked_at} not found, the PATH of --dataset folder:{path}."
        assert second.startswith("It must be a folder or a tar archive with images in <class>/, or in train/<class>/")


def test_a_relative_path_may_be_in_the_folder_of_the_data_sets(tree, tmp_path, monkeypatch):
    for name in ("elsewhere", "root"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    packed = tar_folder(tree, tmp_path / "root" / "birds.tar", "w")
    data = load_dataset("folder:birds.tar", packed.parent)
    assert data.name == "folder:birds.tar"
    assert len(data.train) == len(load_dataset(f"folder:{tree}").train)
    (tmp_path / "elsewhere" / "birds.tar").write_bytes(b"the one that is found first")
    with pytest.raises(DataError):
        load_dataset("folder:birds.tar", packed.parent)


def test_imagenet_is_class_folders(tmp_path):
    with pytest.raises(MissingDataError, match="imagenet/train/<class>/"):
        load_dataset("imagenet", tmp_path)
    with pytest.raises(UnreachableError, match=r"cannot be downloaded automatically.\nManual download: register at"):
        get_dataset_files("imagenet", tmp_path)
    write_tree(tmp_path / "imagenet", classes=("n01440764", "n01443537"))
    data = load_dataset("imagenet", tmp_path, image_size=64)
    assert (data.name, data.description, data.image_size) == ("imagenet", "ImageNet, 2 classes", 64)


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "classes", "train", "val", "size"),
    [("tiny-imagenet-20", 20, 250, 50, 64), ("imagenette-160-mini", 8, 100, 30, 160)],
)
def test_real_class_folders(data_folder, name, classes, train, val, size):
    archive = f"{data_folder}/{name}.tar"
    if not os.path.isfile(archive):
        pytest.skip(f"{archive} not found")
    data = load_dataset(f"folder:{archive}", image_size=size)
    assert data.description == f"{name}, {classes} classes"
    assert torch.bincount(data.train.labels).tolist() == [train] * classes
    assert torch.bincount(data.test.labels).tolist() == [val] * classes
    assert all(class_name.startswith("n0") for class_name in data.class_names)
    images, labels = next(iter(eval_batches(data, 256)))
    assert labels.tolist() == sorted(labels.tolist())
    # Natural images: normalized with ImageNet's statistics they have about mean 0 and deviation 1.
    assert images.mean((0, 2, 3)).abs().max() < 0.6
    assert 0.7 < images.std() < 1.4
