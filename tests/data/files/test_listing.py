import os
import pickle
from dataclasses import replace

import numpy as np
import pytest

from spatialgrad.data.errors import CorruptDataError, DataError
from spatialgrad.data.files.listing import MAX_BYTES, find_files
from support.data_files import tar_bytes, tar_folder

NAMES = ["train/cat/1.jpg", "train/cat/deep/2.jpg", "train/dog/1.png", "train/top.jpg", "val/cat/3.jpg"]


@pytest.fixture(params=["folder", "archive"])
def place(request, tmp_path):
    for name in [*NAMES, "train/cat/._1.jpg"]:
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).write_bytes(name.encode())
    if request.param == "folder":
        return tmp_path / "set"
    return tar_folder(tmp_path / "set", tmp_path / "set.tar", "w")


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["train/*/*.jpg"], ["train/cat/1.jpg"]),
        (["val/*/*", "train/dog/*"], ["train/dog/1.png", "val/cat/3.jpg"]),
        (["train/*.jpg", "train/top.*"], ["train/top.jpg"]),
        (["train/*/**"], NAMES[:3]),
        (["absent/*"], []),
    ],
)
def test_files_are_found_by_patterns_in_the_order_of_their_names(place, patterns, names):
    files = find_files(place, patterns)
    assert [name.removeprefix("set/") for name in files.relative_names()] == names
    assert len(files) == len(names)
    for index, name in enumerate(names):
        assert files.read(index) == name.encode()
        with files.open(index) as file:
            assert file.read(3) == name.encode()[:3]
        assert files.name(index) == str(place / files.relative_names()[index])


def test_all_files_below(place):
    names = [name.removeprefix("set/") for name in find_files(place, ["*/*/**"]).relative_names()]
    # In an archive, the only folder at its top counts as well.
    assert names == ([*NAMES[:3], NAMES[4]] if place.is_dir() else NAMES)


def test_a_selection_is_in_the_order_asked_for_and_can_be_sent_to_a_worker(place):
    chosen = pickle.loads(pickle.dumps(find_files(place, ["train/cat/**"]).select([1, 0])))
    assert [chosen.read(index) for index in range(2)] == [NAMES[1].encode(), NAMES[0].encode()]


def test_a_file_that_vanished_is_named(place):
    files = find_files(place, ["val/*/*"])
    (place / "val/cat/3.jpg").unlink() if place.is_dir() else place.unlink()
    for read in (files.read, files.open):
        with pytest.raises(DataError, match=r"val/cat/3\.jpg cannot be read"):
            read(0)


@pytest.mark.timeout(60)
def test_a_pipe_does_not_block(tmp_path):
    (tmp_path / "val").mkdir()
    os.mkfifo(tmp_path / "val/3.jpg")
    files = find_files(tmp_path, ["val/*"])
    # A writer, so that opening the pipe would not block: this test would fail before it waits for content.
    writer = os.open(tmp_path / "val/3.jpg", os.O_RDWR | os.O_NONBLOCK)
    try:
        for read in (files.open, files.read):
            with pytest.raises(DataError, match=r"val/3\.jpg cannot be read \(it is not a regular file\)"):
                read(0)
    finally:
        os.close(writer)


def test_a_huge_file_is_not_read(place):
    path = place / "val/cat/3.jpg" if place.is_dir() else place
    files = find_files(place, ["val/*/*"])
    os.truncate(path, path.stat().st_size + MAX_BYTES)  # a hole, which takes no space
    files = files if files.spans is None else replace(files, spans=files.spans + np.array([0, MAX_BYTES]))
    for read in (files.open, files.read):
        with pytest.raises(CorruptDataError, match=r"val/cat/3\.jpg has 268,435,469 bytes, more than 268,435,456"):
            read(0)


def test_what_is_no_place_is_refused(tmp_path):
    (tmp_path / "set.tar.gz").write_bytes(b"")
    for name in ("set.tar.gz", "absent"):
        with pytest.raises(DataError, match=f"{name} is neither a folder nor an uncompressed tar archive"):
            find_files(tmp_path / name, ["*"])
    (tmp_path / "twice.tar").write_bytes(tar_bytes([("a/b", b"1"), ("a/b", b"2")]))
    with pytest.raises(CorruptDataError, match="contains a/b twice"):
        find_files(tmp_path / "twice.tar", ["a/*"])
