"""CIFAR-10 and CIFAR-100 as published, real, small and spoilt."""

import hashlib
import lzma
import os
import pickle
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from spatialgrad.data import (
    CorruptDataError,
    DataError,
    MissingDataError,
    get_dataset_files,
    load_dataset,
)
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


def test_cifar10_is_read_as_published(tmp_path):
    images, labels = write_cifar10(tmp_path / "cifar-10-batches-py")
    data = load_dataset("cifar10", tmp_path)
    np.testing.assert_array_equal(data.train.images.numpy(), images)
    assert data.train.labels.tolist() == labels
    assert data.class_names[6] == "frog"
    assert data.description == "CIFAR-10, 100/20 subset"
    assert (data.channels, data.num_classes, data.image_size) == (3, 10, 32)


def test_cifar100_is_read_as_published(root):
    data = load_dataset("cifar100", root)
    np.testing.assert_array_equal(data.train.images.numpy(), cifar_images(100, 1))
    np.testing.assert_array_equal(data.test.images.numpy(), cifar_images(100, 2))
    assert data.train.labels[:3].tolist() == [0, 1, 2]
    assert data.class_names[42] == "class_42"


@pytest.mark.parametrize("ending", ARCHIVES)
@pytest.mark.parametrize(
    ("name", "folder", "archive"),
    [("cifar10", "cifar-10-batches-py", "cifar-10-python"), ("cifar100", "cifar-100-python", "cifar-100-python")],
)
def test_the_archive_is_as_good_as_the_folder(root, tmp_path, ending, name, folder, archive):
    unpacked = load_dataset(name, root)
    tar_folder(root / folder, root / f"{archive}{ending}", ARCHIVES[ending])
    shutil.rmtree(root / folder)
    before = sorted(path.name for path in root.iterdir())
    packed = load_dataset(name, root)
    assert torch.equal(packed.train.images, unpacked.train.images)
    assert torch.equal(packed.test.labels, unpacked.test.labels)
    assert sorted(path.name for path in root.iterdir()) == before, "reading an archive must not write"


@pytest.mark.parametrize("name", ["data_batch_1", "data_batch_5", "test_batch", "batches.meta"])
@pytest.mark.parametrize("damage", ["truncated", "html", "empty"])
def test_a_damaged_file_is_named_with_the_way_out(root, name, damage):
    path = root / "cifar-10-batches-py" / name
    content = path.read_bytes()
    path.write_bytes({"truncated": content[: len(content) // 2], "html": b"<html>", "empty": b""}[damage])
    with pytest.raises(
        CorruptDataError,
        match=f"(?s){path} .*remove {path.parent} and run `spatialgrad data get cifar10 --data.root {root}`",
    ):
        load_dataset("cifar10", root)


@pytest.mark.parametrize(("put", "instead_of"), [("data_batch_2", "data_batch_3"), ("test_batch", "data_batch_1")])
def test_a_swapped_batch_is_named(root, put, instead_of):
    folder = root / "cifar-10-batches-py"
    shutil.copy(folder / put, folder / instead_of)
    with pytest.raises(CorruptDataError, match=f"{instead_of} is a different file: its title is"):
        load_dataset("cifar10", root)


def test_swapped_train_and_test_are_noticed(root):
    folder = root / "cifar-100-python"
    shutil.copy(folder / "test", folder / "train")
    with pytest.raises(CorruptDataError, match="train is a different file: its title is b'testing batch 1 of 1'"):
        load_dataset("cifar100", root)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (cifar_images(3, 0).reshape(3, -1), [0, 1], "a label for each of its 3 images"),
        (cifar_images(3, 0).reshape(3, -1), [0, 1, 100], "labels 0 to 100, not 0 to 99"),
        (cifar_images(3, 0).reshape(3, -1), [0, -1, 1], "labels -1 to 1"),
        (cifar_images(3, 0).reshape(3, -1), [0, 1.5, 2], "a label for each"),
        (cifar_images(3, 0).reshape(3, -1), [0, 2**70, 2], "a label for each"),
        (np.zeros((0, 3072), dtype=np.uint8), [], "a label for each of its 0 images"),
        (np.zeros((3, 3071), dtype=np.uint8), [0, 1, 2], "no images of 3 × 32 × 32 bytes"),
        (np.zeros((3, 3072), dtype=np.float32), [0, 1, 2], "no images of 3 × 32 × 32 bytes"),
    ],
)
def test_content_that_is_not_cifar_is_refused(root, images, labels, message):
    batch = {"batch_label": "training batch 1 of 1", "fine_labels": labels, "data": images}
    (root / "cifar-100-python" / "train").write_bytes(python2_pickle(batch))
    with pytest.raises(CorruptDataError, match=message):
        load_dataset("cifar100", root)


def test_a_file_as_large_as_the_published_one_must_have_its_checksum(root):
    labels = [i % 100 for i in range(10_000)]
    content = cifar_batch(np.zeros((10_000, 3, 32, 32), dtype=np.uint8), labels, "testing batch 1 of 1", "fine_labels")
    (root / "cifar-100-python" / "test").write_bytes(content)
    with pytest.raises(CorruptDataError, match="test has 10,000 images, as published, but not the published md5"):
        load_dataset("cifar100", root)


def test_a_missing_file_is_named(root):
    (root / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(MissingDataError, match="cifar-10-batches-py has no file data_batch_4"):
        load_dataset("cifar10", root)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar-100-python/train", "has no file train"),
        ("cifar-100-python.tar.gz", "cifar-100-python.tar.gz is neither a folder nor a tar archive"),
    ],
)
def test_a_pipe_does_not_block(root, name, message):
    """Nobody writes to it: whoever opened it would wait forever."""
    if name.endswith(".gz"):
        shutil.rmtree(root / "cifar-100-python")
    else:
        (root / name).unlink()
    os.mkfifo(root / name)
    with pytest.raises(DataError, match=message):
        load_dataset("cifar100", root)


def test_a_damaged_archive_is_named_with_the_way_out(root):
    archive = tar_folder(root / "cifar-100-python", root / "cifar-100-python.tar.gz", "w:gz")
    shutil.rmtree(root / "cifar-100-python")
    archive.write_bytes(archive.read_bytes()[:-1000])
    with pytest.raises(CorruptDataError, match=f"(?s){archive} is truncated.*remove {archive} and run"):
        load_dataset("cifar100", root)


def test_what_is_missing_says_how_to_get_it(tmp_path):
    with pytest.raises(MissingDataError) as caught:
        load_dataset("cifar10", tmp_path)
    message = str(caught.value)
    assert str(tmp_path / "cifar-10-batches-py") in message
    assert "spatialgrad data get cifar10" in message
    assert (
        f"put cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz into {tmp_path}"
        in message
    )


def _serve_cifar100(server, monkeypatch, archive):
    server.files[archive.name] = archive.read_bytes()
    checksum = f"md5:{hashlib.md5(archive.read_bytes()).hexdigest()}"
    remote = RemoteFile(url=server.url(archive.name), checksum=checksum)
    monkeypatch.setattr(cifar, "CIFAR100", replace(cifar.CIFAR100, remote=remote))


def test_get_downloads_and_unpacks(root, tmp_path_factory, monkeypatch):
    archive = tar_folder(root / "cifar-100-python", root / "cifar-100-python.tar.gz", "w:gz")
    target = tmp_path_factory.mktemp("target")
    lines = []
    with file_server() as server:
        _serve_cifar100(server, monkeypatch, archive)
        server.cut_after = [100_000]
        assert get_dataset_files("cifar100", target, progress=lines.append) == target / "cifar-100-python"
        assert [path.name for path in target.iterdir()] == ["cifar-100-python"]
        get_dataset_files("cifar100", target, progress=lines.append)
        assert len(server.requests) == 2, "what is there must not be downloaded again"
    assert lines[-1] == f"cifar100 already exists: {target / 'cifar-100-python'}"
    assert torch.equal(load_dataset("cifar100", target).train.images, load_dataset("cifar100", root).train.images)


def test_get_refuses_a_malicious_archive_and_leaves_nothing(tmp_path, monkeypatch):
    link = tarfile.TarInfo("cifar-100-python/way")
    link.type, link.linkname = tarfile.SYMTYPE, ".."
    archive = tmp_path / "cifar-100-python.tar.gz"
    archive.write_bytes(tar_bytes([(link, b""), ("cifar-100-python/way/canary", b"x")], "w:gz"))
    target = tmp_path / "target"
    with file_server() as server:
        _serve_cifar100(server, monkeypatch, archive)
        with pytest.raises(CorruptDataError, match="neither a plain file nor a folder"):
            get_dataset_files("cifar100", target, progress=silent)
    assert [path.name for path in target.iterdir()] == ["cifar-100-python.tar.gz"]
    assert not list(tmp_path.rglob("canary"))


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
        for member in tar:
            split = {"cifar-100-python/train": data.train, "cifar-100-python/test": data.test}.get(member.name)
            if split is None:
                continue
            reference = pickle.load(tar.extractfile(member), encoding="latin1")
            np.testing.assert_array_equal(split.images.numpy().reshape(-1, 3072), reference["data"])
            assert split.labels.tolist() == reference["fine_labels"]
            counts = torch.bincount(split.labels, minlength=100)
            assert counts.min() == counts.max() == len(split) // 100
    if len(data.train) == 20_000:
        assert data.description == "CIFAR-100, 20k/5k subset"
        assert data.test.labels[:2].tolist() == [49, 72]
    mean, std = channel_statistics(data.train.images)
    assert mean == pytest.approx(data.mean, abs=0.01)
    assert std == pytest.approx(data.std, abs=0.01)
