"""CIFAR-10 and CIFAR-100 as published, real, small and damaged."""

import hashlib
import lzma
import pickle
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from spatialgrad.data import CorruptDataError, MissingDataError, get_dataset_files, load_dataset
from spatialgrad.data.sets import cifar
from support.data_files import (
    channel_statistics,
    cifar_batch,
    cifar_images,
    file_server,
    python2_pickle,
    tar_folder,
    write_cifar10,
    write_cifar100,
)


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


@pytest.mark.parametrize(
    ("name", "folder", "archive", "mode"),
    [
        ("cifar10", "cifar-10-batches-py", "cifar-10-python.tar.gz", "w:gz"),
        ("cifar100", "cifar-100-python", "cifar-100-python.tar.xz", "w:xz"),
        ("cifar100", "cifar-100-python", "cifar-100-python.tar", "w"),
    ],
)
def test_the_archive_is_as_good_as_the_folder(root, name, folder, archive, mode):
    unpacked = load_dataset(name, root)
    tar_folder(root / folder, root / archive, mode)
    shutil.rmtree(root / folder)
    before = sorted(path.name for path in root.iterdir())
    packed = load_dataset(name, root)
    assert torch.equal(packed.train.images, unpacked.train.images)
    assert torch.equal(packed.test.labels, unpacked.test.labels)
    assert sorted(path.name for path in root.iterdir()) == before, "reading an archive must not write"


IMAGES = cifar_images(3, 0).reshape(3, -1)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test", b"<html>", "cannot be read as a pickle of arrays"),
        ("meta", b"", "cannot be read as a pickle of arrays"),
        ("meta", python2_pickle({}), "does not contain the names of the classes"),
        ("train", cifar_batch(IMAGES, [0, 1], "fine_labels"), "has no images of CIFAR-100 with their labels"),
        ("train", cifar_batch(IMAGES, [0, 1, 2]), "has no images of CIFAR-100 with their labels"),
        ("train", python2_pickle({"data": IMAGES[:, :-1], "fine_labels": [0, 1, 2]}), "has no images of CIFAR-100"),
    ],
)
def test_a_damaged_file_is_named_with_the_remedy(root, name, content, message):
    path = root / "cifar-100-python" / name
    path.write_bytes(content)
    remedy = f"remove {path.parent} and run `spatialgrad data get cifar100 --data.root {root}`"
    with pytest.raises(CorruptDataError, match=f"(?s){path} {message}.*{remedy}"):
        load_dataset("cifar100", root)


def test_what_is_missing_or_truncated_is_named(root):
    (root / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(MissingDataError, match="cifar-10-batches-py has no file data_batch_4"):
        load_dataset("cifar10", root)
    archive = tar_folder(root / "cifar-100-python", root / "cifar-100-python.tar.gz", "w:gz")
    shutil.rmtree(root / "cifar-100-python")
    archive.write_bytes(archive.read_bytes()[:-1000])
    with pytest.raises(CorruptDataError, match=f"(?s){archive} is truncated.*remove {archive} and run"):
        load_dataset("cifar100", root)


def test_all_images_with_another_checksum_are_read_and_one_line_says_so(root, monkeypatch, caplog):
    monkeypatch.setattr(cifar, "PUBLISHED", (100, 100))
    assert load_dataset("cifar100", root).description == "CIFAR-100"
    (record,) = caplog.records
    folder = root / "cifar-100-python"
    expected = f"{folder}: the content of train, test is as expected, but the md5 is not the published one"
    assert record.getMessage() == expected


def test_get_downloads_and_unpacks(root, tmp_path_factory, monkeypatch):
    archive = tar_folder(root / "cifar-100-python", root / "cifar-100-python.tar.gz", "w:gz")
    target = tmp_path_factory.mktemp("target")
    lines = []
    with file_server() as server:
        server.files[archive.name] = archive.read_bytes()
        monkeypatch.setattr(cifar, "URL", server.url("")[:-1])
        checksum = hashlib.md5(archive.read_bytes()).hexdigest()
        monkeypatch.setitem(cifar.CIFAR100.__dict__, "checksum", f"md5:{checksum}")
        assert get_dataset_files("cifar100", target, progress=lines.append) == target / "cifar-100-python"
        assert [path.name for path in target.iterdir()] == ["cifar-100-python"]
        get_dataset_files("cifar100", target, progress=lines.append)
        assert len(server.requests) == 1, "what is there must not be downloaded again"
    assert lines[-1] == f"cifar100 already exists: {target / 'cifar-100-python'}"
    assert torch.equal(load_dataset("cifar100", target).train.images, load_dataset("cifar100", root).train.images)


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
