"""Fashion-MNIST: the shipped subset, the published layout, and the real files."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from spatialgrad.data import CorruptDataError, MissingDataError, UnreachableError, get_dataset_files, load_dataset
from spatialgrad.data.sets import fashion_mnist
from support.data_files import channel_statistics, file_server, silent, write_idx


@pytest.fixture
def nowhere_else(monkeypatch):
    """Without the folder of Debian's package."""
    source = replace(fashion_mnist.SOURCE, places=fashion_mnist.SOURCE.places[:2])
    monkeypatch.setattr(fashion_mnist, "SOURCE", source)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Files of the published size, of noise that compresses well."""
    folder = tmp_path_factory.mktemp("made") / "fashion-mnist"
    for prefix, count in (("train", 60_000), ("t10k", 10_000)):
        images = np.zeros((count, 28, 28), dtype=np.uint8)
        images[:, 3, 5] = np.arange(count) % 251
        write_idx(folder / f"{prefix}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", np.arange(count) % 10)
    return folder


def test_mini_is_the_shipped_slice():
    data = load_dataset("fashion-mnist-mini")
    assert data.train.images.shape == (5000, 1, 28, 28)
    assert data.test.images.shape == (1000, 1, 28, 28)
    assert data.train.images.dtype == torch.uint8
    assert torch.bincount(data.train.labels).tolist() == [500] * 10
    assert torch.bincount(data.test.labels).tolist() == [100] * 10
    assert data.train.labels[:4].tolist() == [9, 0, 0, 3]
    assert (data.num_classes, data.channels, data.image_size) == (10, 1, 28)
    assert data.class_names[9] == "Ankle boot"
    assert data.description == "Fashion-MNIST, 5k/1k subset"


def test_image_size_32_puts_black_around_the_images():
    plain, padded = load_dataset("fashion-mnist-mini"), load_dataset("fashion-mnist-mini", image_size=32)
    assert padded.image_size == 32
    assert padded.train.images.shape == (5000, 1, 32, 32)
    assert torch.equal(padded.train.images[:, :, 2:30, 2:30], plain.train.images)
    assert padded.train.images.sum() == plain.train.images.sum()
    with pytest.raises(ValueError, match="28×28 can be padded to a larger size, but not reduced to 24"):
        load_dataset("fashion-mnist-mini", image_size=24)


@pytest.mark.usefixtures("nowhere_else")
def test_reads_the_published_layout(made, tmp_path):
    data = load_dataset("fashion-mnist", made.parent)
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    assert data.description == "Fashion-MNIST"
    assert data.train.images[250, 0, 3, 5] == 250
    assert data.train.labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    (tmp_path / "FashionMNIST").mkdir()
    (tmp_path / "FashionMNIST" / "raw").symlink_to(made)  # as torchvision stores it
    assert len(load_dataset("fashion-mnist", tmp_path).test) == 10_000


@pytest.mark.usefixtures("nowhere_else")
def test_swapped_and_missing_files_are_named_with_the_way_out(made, tmp_path):
    folder = Path(shutil.copytree(made, tmp_path / "fashion-mnist"))
    shutil.copy(folder / "t10k-labels-idx1-ubyte.gz", folder / "train-labels-idx1-ubyte.gz")
    expected = rf"(?s)train-labels.*10,000 labels.*remove {folder} and run `spatialgrad data get fashion"
    with pytest.raises(CorruptDataError, match=expected):
        load_dataset("fashion-mnist", tmp_path)
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    shutil.copy(made / "train-labels-idx1-ubyte.gz", folder)
    with pytest.raises(MissingDataError, match=r"has no file t10k-labels-idx1-ubyte\.gz"):
        load_dataset("fashion-mnist", tmp_path)


@pytest.mark.usefixtures("nowhere_else")
def test_get_downloads_the_four_files_or_none(tmp_path, monkeypatch, made):
    with file_server() as server:
        monkeypatch.setattr(fashion_mnist, "URL", server.url("data"))
        checksums = {}
        for path in made.iterdir():
            server.files[f"data/{path.name}"] = path.read_bytes()
            checksums[path.name] = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
        monkeypatch.setattr(fashion_mnist, "FILES", checksums)
        absent = server.files.pop("data/t10k-labels-idx1-ubyte.gz")
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        with pytest.raises(UnreachableError, match=f"(?s)404.*Manual download: put .* into {tmp_path}/fashion-mnist"):
            get_dataset_files("fashion-mnist", tmp_path, progress=silent)
        with pytest.raises(MissingDataError, match="spatialgrad data get fashion-mnist"):
            load_dataset("fashion-mnist", tmp_path)
        server.files["data/t10k-labels-idx1-ubyte.gz"] = absent
        assert get_dataset_files("fashion-mnist", tmp_path, progress=silent) == tmp_path / "fashion-mnist"
    assert [path.name for path in tmp_path.iterdir()] == ["fashion-mnist"]


@pytest.mark.realdata
def test_the_real_one_begins_as_published_and_the_mini_is_its_slice(data_folder):
    if fashion_mnist.SOURCE.locate(Path(data_folder)) is None:
        pytest.skip("fashion-mnist not found: apt-get install dataset-fashion-mnist")
    data, mini = load_dataset("fashion-mnist", data_folder), load_dataset("fashion-mnist-mini")
    assert data.train.labels[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
    assert data.test.labels[:10].tolist() == [9, 2, 1, 1, 6, 1, 4, 6, 5, 7]
    mean, std = channel_statistics(data.train.images)
    assert mean == pytest.approx(data.mean, abs=1e-4)
    assert std == pytest.approx(data.std, abs=1e-4)
    for whole, part, per_class in ((data.train, mini.train, 500), (data.test, mini.test, 100)):
        seen = torch.nn.functional.one_hot(whole.labels, 10).cumsum(0)
        first = seen.gather(1, whole.labels[:, None]).flatten() <= per_class
        assert torch.equal(whole.images[first], part.images)
        assert torch.equal(whole.labels[first], part.labels)
