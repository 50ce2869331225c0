"""Pickles, MATLAB files and IDX files: what they contain, and what happens when they are damaged or malicious."""

import gzip
import io
import os
import pickle

import numpy as np
import pytest
from scipy.io import savemat

from spatialgrad.data.errors import CorruptDataError
from spatialgrad.data.files.formats import read_idx, read_mat, read_pickle
from support.data_files import idx_bytes, python2_pickle, write_idx

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)
BATCH = {"data": IMAGES, "labels": [1, 2, 3], "title": "training batch 1 of 5", "number": 7, "share": 0.5}


@pytest.mark.parametrize("dump", [python2_pickle, lambda value: pickle.dumps(value, 4)], ids=["python 2", "python 3"])
def test_a_pickle_of_arrays(dump):
    batch = read_pickle(dump(BATCH), "batch")
    np.testing.assert_array_equal(batch[b"data"], IMAGES)
    assert batch[b"labels"] == [1, 2, 3]
    assert batch[b"title"] in (b"training batch 1 of 5", "training batch 1 of 5")


class Runs:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "evil",
    [Runs(os.system, "touch canary"), Runs(eval, "open('canary', 'w')"), Runs(np.save, "canary", IMAGES)],
    ids=["system", "eval", "numpy"],
)
def test_nothing_in_a_pickle_is_executed(evil, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorruptDataError, match=r"batch cannot be read as a pickle of arrays \(.*it refers to "):
        read_pickle(pickle.dumps({"data": evil}), "batch")
    assert not list(tmp_path.iterdir())


DAMAGE = ["empty", "html", "truncated", "other"]


@pytest.mark.parametrize("content", [b"", b"<html>", python2_pickle(BATCH)[:100], python2_pickle([1, 2])], ids=DAMAGE)
def test_other_pickles_are_named(content):
    with pytest.raises(CorruptDataError, match=r"^batch cannot be read as a pickle of arrays"):
        read_pickle(content, "batch")


def mat_bytes(**variables):
    file = io.BytesIO()
    savemat(file, variables)
    return file.getvalue()


def test_a_variable_of_a_mat_file():
    np.testing.assert_array_equal(read_mat(mat_bytes(joints=IMAGES), "joints", "joints.mat"), IMAGES)


@pytest.mark.parametrize(
    "content", [b"", b"<html>", mat_bytes(joints=IMAGES)[:150], mat_bytes(other=IMAGES)], ids=DAMAGE
)
def test_other_mat_files_are_named(content):
    with pytest.raises(CorruptDataError, match=r"^joints\.mat cannot be read"):
        read_mat(content, "joints", "joints.mat")


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_idx_files_and_every_truncation_of_them(tmp_path, name):
    path = tmp_path / name
    write_idx(path, IMAGES)
    np.testing.assert_array_equal(read_idx(path, ndim=3), IMAGES)
    whole = path.read_bytes()
    for length in (0, 3, 15, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptDataError, match=f"^{path}"):
            read_idx(path, ndim=3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>not found</html>", "is not an IDX file"),
        (idx_bytes(IMAGES[0, 0]), r"is not an IDX file of bytes with 3 dimension\(s\)"),
        (idx_bytes(IMAGES) + b"\0", r"has 61 bytes of data, not those of the shape \(5, 4, 3\)"),
    ],
)
def test_other_idx_files_are_named(tmp_path, content, message):
    for path, data in ((tmp_path / "x", content), (tmp_path / "x.gz", gzip.compress(content))):
        path.write_bytes(data)
        with pytest.raises(CorruptDataError, match=message):
            read_idx(path, ndim=3)
