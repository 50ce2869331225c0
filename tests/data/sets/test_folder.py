import os
import shutil
import tarfile
import time

import pytest
import torch
from PIL import Image

from spatialgrad.data import (
    CorruptDataError,
    DataError,
    MissingDataError,
    eval_batches,
    get_dataset_files,
    load_dataset,
    train_batches,
    validation_split,
)
from support.data_files import image_bytes, silent, tar_bytes, tar_folder, write_tree


@pytest.fixture
def tree(tmp_path):
    return write_tree(tmp_path / "pets")


def _all(dataset, **options):
    return torch.cat([images for images, _ in eval_batches(dataset, 4, **options)])


def test_classes_are_the_folders_in_the_order_of_their_names(tree):
    data = load_dataset(f"folder:{tree}")
    assert data.class_names == ("cat", "dog", "owl")
    assert (len(data.train), len(data.test)) == (18, 9)
    assert data.train.labels.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert data.description == "pets, 3 classes"
    assert (data.image_size, data.channels) == (224, 3)
    assert data.augmentation.resized_crop == (0.08, 1.0)
    assert data.train.files.name(7) == str(tree / "train" / "dog" / "dog_1.JPEG")


def test_batches_have_the_image_size_asked_for(tree):
    data = load_dataset(f"folder:{tree}", image_size=48)
    images, _ = next(iter(train_batches(data, 4, seed=0, epoch=0, augmentation=data.augmentation)))
    assert images.shape == (4, 3, 48, 48)
    assert _all(data).shape == (9, 3, 48, 48)
    assert next(iter(eval_batches(load_dataset(f"folder:{tree}"), 2)))[0].shape == (2, 3, 224, 224)


@pytest.mark.parametrize("nested", [False, True])
def test_a_plain_archive_is_read_in_place(tree, tmp_path, nested):
    archive = tmp_path / "packed" / "pets.tar"
    archive.parent.mkdir()
    with tarfile.open(archive, "w") as tar:
        tar.add(tree, arcname="pets" if nested else ".")
    packed, unpacked = load_dataset(f"folder:{archive}", image_size=32), load_dataset(f"folder:{tree}", image_size=32)
    assert packed.description == "pets, 3 classes"
    assert torch.equal(packed.train.labels, unpacked.train.labels)
    assert torch.equal(_all(packed, num_workers=2), _all(unpacked))
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
    assert torch.equal(_all(packed), _all(load_dataset(f"folder:{tree}", image_size=32)))


def test_deeper_folders_and_other_files_are_handled(tree):
    (tree / "train" / "cat" / "images").mkdir()
    (tree / "train" / "cat" / "images" / "more.png").write_bytes(image_bytes(format="PNG"))
    (tree / "train" / "cat" / "notes.txt").write_text("no image")
    (tree / "train" / "cat" / "._cat_0.JPEG").write_bytes(b"left behind by a file manager")
    (tree / "train" / "readme.jpg").write_bytes(image_bytes())
    (tree / "extra.jpg").write_bytes(image_bytes())
    data = load_dataset(f"folder:{tree}", image_size=16)
    assert torch.bincount(data.train.labels).tolist() == [7, 6, 6]
    _all(data, split="train")


def test_links_that_lead_in_a_circle_do_no_harm(tree):
    (tree / "train" / "cat" / "circle").symlink_to(tree)
    assert len(load_dataset(f"folder:{tree}").train) == 18


def test_classes_may_be_links(tree, tmp_path):
    shutil.move(tree / "val" / "cat", tmp_path / "elsewhere")
    (tree / "val" / "cat").symlink_to(tmp_path / "elsewhere")
    assert len(load_dataset(f"folder:{tree}").test) == 9


def test_the_test_split_may_have_another_name(tree):
    (tree / "val").rename(tree / "test")
    assert len(load_dataset(f"folder:{tree}").test) == 9


def test_a_validation_split_of_a_folder(tree):
    search = validation_split(load_dataset(f"folder:{tree}", image_size=16), 1 / 3)
    assert torch.bincount(search.train.labels).tolist() == [4, 4, 4]
    assert torch.bincount(search.test.labels).tolist() == [2, 2, 2]
    assert _all(search).shape == (6, 3, 16, 16)
    # Each training image is on one side, with the label of its folder; no test image is on either.
    names = [split.files.relative_names() for split in (search.train, search.test)]
    expected = [f"train/{label}/{label}_{number}.JPEG" for label in search.class_names for number in range(6)]
    assert sorted(names[0] + names[1]) == expected
    for split, those in zip((search.train, search.test), names, strict=True):
        assert [search.class_names[label] for label in split.labels] == [name.split("/")[1] for name in those]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("content", [b"", b"not an image", image_bytes()[:400]])
def test_a_damaged_image_is_named_whoever_decodes_it(tree, num_workers, content):
    path = tree / "val" / "dog" / "dog_1.JPEG"
    path.write_bytes(content)
    data = load_dataset(f"folder:{tree}")
    with pytest.raises(CorruptDataError) as caught:
        _all(data, num_workers=num_workers)
    assert str(caught.value).startswith(f"{path} cannot be decoded")
    assert "Traceback" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_small_file_of_a_huge_image_is_named_and_not_decoded(tree):
    path = tree / "val" / "dog" / "dog_1.JPEG"
    Image.new("1", (13_300, 13_300)).save(path, "PNG")
    assert path.stat().st_size < 100_000
    with pytest.raises(CorruptDataError, match=r"dog_1\.JPEG has 13,300 × 13,300 pixels, more than 89,000,000"):
        _all(load_dataset(f"folder:{tree}", image_size=16))


@pytest.mark.timeout(60)
def test_a_pipe_among_the_images_is_named_and_does_not_block(tree):
    path = tree / "val" / "dog" / "dog_1.JPEG"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"dog_1\.JPEG cannot be read \(it is not a regular file\)"):
        _all(load_dataset(f"folder:{tree}", image_size=16))


def test_an_image_that_vanished_is_named(tree):
    data = load_dataset(f"folder:{tree}")
    (tree / "val" / "dog" / "dog_1.JPEG").unlink()
    with pytest.raises(DataError, match=r"dog_1\.JPEG cannot be read"):
        _all(data)


def test_an_archive_that_lost_its_end_names_the_image(tree, tmp_path):
    archive = tar_folder(tree, tmp_path / "pets.tar", "w")
    data = load_dataset(f"folder:{archive}")
    os.truncate(archive, data.test.files.spans[-1].tolist()[0] + 10)
    with pytest.raises(CorruptDataError, match=r"pets\.tar/pets/.* cannot be decoded"):
        _all(data)
    with pytest.raises(CorruptDataError, match=r"pets\.tar is truncated"):
        load_dataset(f"folder:{archive}")


def test_a_malicious_archive_is_not_read_either(tmp_path):
    link = tarfile.TarInfo("train/cat/1.jpg")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    archive = tmp_path / "pets.tar"
    archive.write_bytes(tar_bytes([("train/cat/0.jpg", image_bytes()), (link, b"")]))
    with pytest.raises(CorruptDataError, match=r"'train/cat/1\.jpg', which is neither a plain file nor a folder"):
        load_dataset(f"folder:{archive}")


def test_a_class_that_training_does_not_have_is_named(tree):
    shutil.rmtree(tree / "train" / "owl")
    with pytest.raises(CorruptDataError, match=r"owl_0\.JPEG is of the class owl, which train/ does not have"):
        load_dataset(f"folder:{tree}")


@pytest.mark.parametrize("name", ["absent", "absent.tar", "absent.tar.gz"])
@pytest.mark.parametrize("function", [load_dataset, get_dataset_files])
def test_a_path_that_is_missing_is_named_with_its_flag(function, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "root"
    for path, looked_at in ((name, f"{tmp_path / name} and {root / name}"), (tmp_path / name, tmp_path / name)):
        with pytest.raises(MissingDataError) as caught:
            function(f"folder:{path}", root)
        first, second = str(caught.value).split("\n")
        assert first == f"{looked_at} not found, the PATH of --dataset folder:{path}."
        assert second == "It must be a folder or a tar archive with images in train/<class>/ and val/<class>/."


def test_a_relative_path_may_be_in_the_folder_of_the_data_sets(tree, tmp_path, monkeypatch):
    for name in ("elsewhere", "root"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    packed = tar_folder(tree, tmp_path / "root" / "birds.tar", "w")
    data = load_dataset("folder:birds.tar", packed.parent)
    assert data.name == "folder:birds.tar"
    assert len(data.train) == len(load_dataset(f"folder:{tree}").train)
    here = tar_folder(tree, tmp_path / "elsewhere" / "birds.tar", "w")
    here.write_bytes(b"not the one that was found first")
    with pytest.raises(DataError):
        load_dataset("folder:birds.tar", packed.parent)


def test_another_layout_is_refused_with_the_right_one(tree, tmp_path):
    with pytest.raises(CorruptDataError, match=r"images in both train/<class>/ and val/<class>/"):
        load_dataset(f"folder:{tree / 'train'}")
    (tmp_path / "images.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match="neither a folder nor an uncompressed tar archive"):
        load_dataset(f"folder:{tmp_path / 'images.zip'}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorruptDataError, match="does not contain images"):
        load_dataset(f"folder:{tmp_path / 'empty'}")


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "classes", "train", "val", "size"),
    [("tiny-imagenet-20", 20, 250, 50, 64), ("imagenette-160-mini", 8, 100, 30, 160)],
)
def test_real_class_folders(data_folder, name, classes, train, val, size):
    archive = f"{data_folder}/{name}.tar"
    if not os.path.isfile(archive):
        pytest.skip(f"{archive} not found")
    started = time.perf_counter()
    data = load_dataset(f"folder:{archive}", image_size=size)
    assert time.perf_counter() - started < 30
    assert data.description == f"{name}, {classes} classes"
    assert torch.bincount(data.train.labels).tolist() == [train] * classes
    assert torch.bincount(data.test.labels).tolist() == [val] * classes
    assert all(class_name.startswith("n0") for class_name in data.class_names)
    images, labels = next(iter(eval_batches(data, 256)))
    assert labels.tolist() == sorted(labels.tolist())
    # Natural images: normalized with ImageNet's statistics they have about mean 0 and deviation 1.
    assert images.mean((0, 2, 3)).abs().max() < 0.6
    assert 0.7 < images.std() < 1.4
    one, other = (
        [
            batch
            for _, batch in zip(
                range(2),
                train_batches(data, 32, seed=0, epoch=0, augmentation=data.augmentation, num_workers=workers),
                strict=False,
            )
        ]
        for workers in (0, 2)
    )
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(one, other, strict=True))
