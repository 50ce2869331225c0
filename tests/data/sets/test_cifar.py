"""CIFAR-10 and CIFAR-100 as published, real, small and damaged."""

import hashlib
import lzma
import pickle
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from spatialgrad.data import CorruptDataError, MissingDataError, get_dataset_files, load_dataset
from spatialgrad.data.files.download import RemoteFile
from spatialgrad.data.sets import cifar
from support.data_files import (
    channel_statistics,
    cifar_batch,
    cifar_images,
    file_server,
    python2_pickle,
    silent,
    tar_bytes,
    tar_folder,
    write_cifar10,
    write_cifar100,
)

ARCHIVES = {".tar.gz": "w:gz", ".tar.xz": "w:xz", ".tar.bz2": "w:bz2", ".tar": "w"}


@pytest.fixture
def root(tmp_path):
    write_cifar10(tmp_path / "cifar-10-batches-py", 10)
    write_cifar100(tmp_path / "cifar-100-python", 100)
    return tmp_path


def test_both_are_read_as_published(tmp_path, caplog):
    images, labels = write_cifar10(tmp_path / "cifar-10-batches-py")
    write_cifar100(tmp_path / "cifar-100-python", 100)
    ten, hundred = (load_dataset(name, tmp_path) for name in ("cifar10", "cifar100"))
    np.testing.assert_array_equal(ten.train.images.numpy(), images)
    assert ten.train.labels.tolist() == labels
    assert ten.class_names[6] == "frog"
    assert ten.description == "CIFAR-10, 100/20 subset"
    assert (ten.channels, ten.num_classes, ten.image_size) == (3, 10, 32)
    np.testing.assert_array_equal(hundred.train.images.numpy(), cifar_images(100, 1))
    np.testing.assert_array_equal(hundred.test.images.numpy(), cifar_images(100, 2))
    assert hundred.train.labels[:3].tolist() == [0, 1, 2]
    assert hundred.class_names[42] == "class_42"
    assert not caplog.records


@pytest.mark.parametrize("ending", ARCHIVES)
@pytest.mark.parametrize(
    ("name", "folder", "archive"),
    [("cifar10", "cifar-10-batches-py", "cifar-10-python"), ("cifar100", "cifar-100-python", "cifar-100-python")],
)
def test_the_archive_is_as_good_as_the_folder(root, ending, name, folder, archive):
    unpacked = load_dataset(name, root)
    tar_folder(root / folder, root / f"{archive}{ending}", ARCHIVES[ending])
    shutil.rmtree(root / folder)
    before = sorted(path.name for path in root.iterdir())
    packed = load_dataset(name, root)
    assert torch.equal(packed.train.images, unpacked.train.images)
    assert torch.equal(packed.test.labels, unpacked.test.labels)
    assert sorted(path.name for path in root.iterdir()) == before, "reading an archive must not write"


@pytest.mark.parametrize("name", ["data_batch_1", "test_batch", "batches.meta"])
@pytest.mark.parametrize("damage", ["truncated", "html", "empty"])
def test_a_damaged_file_is_named_with_the_remedy(root, name, damage):
    path = root / "cifar-10-batches-py" / name
    content = path.read_bytes()
    path.write_bytes({"truncated": content[: len(content) // 2], "html": b"<html>", "empty": b""}[damage])
    with pytest.raises(
        CorruptDataError,
        match=f"(?s){path} .*remove {path.parent} and run `spatialgrad data get cifar10 --data.root {root}`",
    ):
        load_dataset("cifar10", root)


@pytest.mark.parametrize(
    ("name", "put", "instead_of"),
    [
        ("cifar10", "cifar-10-batches-py/data_batch_2", "cifar-10-batches-py/data_batch_3"),
        ("cifar10", "cifar-10-batches-py/test_batch", "cifar-10-batches-py/data_batch_1"),
        ("cifar100", "cifar-100-python/test", "cifar-100-python/train"),
    ],
)
def test_swapped_files_are_named(root, name, put, instead_of):
    shutil.copy(root / put, root / instead_of)
    with pytest.raises(CorruptDataError, match=f"{instead_of} is a different file: its title is b'"):
        load_dataset(name, root)


IMAGES = cifar_images(3, 0).reshape(3, -1)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES, [0, 1], "a label for each of its 3 images"),
        (IMAGES, [0, 1, 100], "labels that are not 0 to 99"),
        (IMAGES, [0, -1, 1], "labels that are not 0 to 99"),
        (IMAGES, [0, 1.5, 2], "labels that are not 0 to 99"),
        (IMAGES[:0], [], "a label for each of its 0 images"),
        (IMAGES[:, :-1], [0, 1, 2], "no images of 3 × 32 × 32 bytes"),
        (IMAGES.astype(np.float32), [0, 1, 2], "no images of 3 × 32 × 32 bytes"),
    ],
)
def test_content_that_is_not_cifar_is_refused(root, images, labels, message):
    batch = {"batch_label": "training batch 1 of 1", "fine_labels": labels, "data": images}
    (root / "cifar-100-python" / "train").write_bytes(python2_pickle(batch))
    with pytest.raises(CorruptDataError, match=message):
        load_dataset("cifar100", root)


def test_all_images_with_another_checksum_are_read_and_one_line_says_so(tmp_path, caplog):
    folder = tmp_path / "cifar-100-python"
    write_cifar100(folder, 100)
    for name, title, count in (("train", "training batch 1 of 1", 50_000), ("test", "testing batch 1 of 1", 10_000)):
        labels = [i % 100 for i in range(count)]
        images = np.zeros((count, 3, 32, 32), dtype=np.uint8)
        (folder / name).write_bytes(cifar_batch(images, labels, title, "fine_labels"))
    data = load_dataset("cifar100", tmp_path)
    assert (len(data.train), len(data.test), data.description) == (50_000, 10_000, "CIFAR-100")
    (record,) = caplog.records
    expected = f"{folder}: the content of train, test is as expected, but the md5 is not the published one"
    assert record.getMessage() == expected


def test_what_is_missing_or_truncated_is_named(root, tmp_path):
    (root / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(MissingDataError, match="cifar-10-batches-py has no file data_batch_4"):
        load_dataset("cifar10", root)
    archive = tar_folder(root / "cifar-100-python", root / "cifar-100-python.tar.gz", "w:gz")
    shutil.rmtree(root / "cifar-100-python")
    archive.write_bytes(archive.read_bytes()[:-1000])
    with pytest.raises(CorruptDataError, match=f"(?s){archive} is truncated.*remove {archive} and run"):
        load_dataset("cifar100", root)


def serve_cifar100(server, monkeypatch, archive):
    server.files[archive.name] = archive.read_bytes()
    checksum = f"md5:{hashlib.md5(archive.read_bytes()).hexdigest()}"
    remote = RemoteFile(url=server.url(archive.name), checksum=checksum)
    monkeypatch.setattr(cifar, "SOURCE100", cifar._source(replace(cifar.CIFAR100, remote=remote)))


def test_get_downloads_and_unpacks(root, tmp_path_factory, monkeypatch):
    archive = tar_folder(root / "cifar-100-python", root / "cifar-100-python.tar.gz", "w:gz")
    target = tmp_path_factory.mktemp("target")
    lines = []
    with file_server() as server:
        serve_cifar100(server, monkeypatch, archive)
        assert get_dataset_files("cifar100", target, progress=lines.append) == target / "cifar-100-python"
        assert [path.name for path in target.iterdir()] == ["cifar-100-python"]
        get_dataset_files("cifar100", target, progress=lines.append)
        assert len(server.requests) == 1, "what is there must not be downloaded again"
    assert lines[-1] == f"cifar100 already exists: {target / 'cifar-100-python'}"
    assert torch.equal(load_dataset("cifar100", target).train.images, load_dataset("cifar100", root).train.images)


def test_get_refuses_a_malicious_archive(tmp_path, monkeypatch):
    link = tarfile.TarInfo("cifar-100-python/way")
    link.type, link.linkname = tarfile.SYMTYPE, ".."
    archive = tmp_path / "cifar-100-python.tar.gz"
    archive.write_bytes(tar_bytes([(link, b""), ("cifar-100-python/way/canary", b"x")], "w:gz"))
    target = tmp_path / "target"
    with file_server() as server:
        serve_cifar100(server, monkeypatch, archive)
        with pytest.raises(CorruptDataError, match="neither a plain file nor a folder"):
            get_dataset_files("cifar100", target, progress=silent)
    assert [path.name for path in target.iterdir()] == ["cifar-100-python.tar.gz"]
    assert not list(tmp_path.rglob("canary"))


def assert_as_unpickled(split, content, label_key):
    """Every image and label as an ordinary unpickler reads them."""
    reference = pickle.loads(content, encoding="latin1")
    np.testing.assert_array_equal(split.images.numpy().reshape(-1, 3072), reference["data"])
    assert split.labels.tolist() == reference[label_key]


def assert_statistics(data):
    counts = torch.bincount(data.train.labels)
    assert counts.min() == counts.max()
    mean, std = channel_statistics(data.train.images)
    assert mean == pytest.approx(data.mean, abs=0.01)
    assert std == pytest.approx(data.std, abs=0.01)


@pytest.mark.slow
@pytest.mark.realdata
def test_real_cifar100_agrees_with_an_ordinary_unpickler(data_folder, tmp_path):
    packed = Path(data_folder, "cifar-100-python.tar.xz")
    if not packed.exists():
        pytest.skip(f"{packed} not found")
    # Decompressed once for both readers, as that is what takes the time.
    place = tmp_path / "cifar-100-python.tar"
    with lzma.open(packed) as source, place.open("wb") as target:
        shutil.copyfileobj(source, target)
    data = load_dataset("cifar100", tmp_path)
    assert data.class_names[:3] == ("apple", "aquarium_fish", "baby")
    with tarfile.open(place) as tar:
        for name, split in (("train", data.train), ("test", data.test)):
            content = tar.extractfile(f"cifar-100-python/{name}").read()
            assert_as_unpickled(split, content, "fine_labels")
    if len(data.train) == 20_000:
        assert data.description == "CIFAR-100, 20k/5k subset"
        assert data.test.labels[:2].tolist() == [49, 72]
    assert_statistics(data)


@pytest.mark.slow
@pytest.mark.realdata
def test_real_cifar10_agrees_with_an_ordinary_unpickler(data_folder):
    folder = Path(data_folder, "cifar-10-batches-py")
    if not folder.is_dir():
        pytest.skip(f"{folder} not found")
    data = load_dataset("cifar10", data_folder)
    assert (data.description, len(data.train), len(data.test)) == ("CIFAR-10", 50_000, 10_000)
    assert data.train.labels[:4].tolist() == [6, 9, 9, 4]
    assert_as_unpickled(data.test, (folder / "test_batch").read_bytes(), "labels")
    assert_statistics(data)
