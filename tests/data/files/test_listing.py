import pickle
import tarfile

import pytest

from spatialgrad.data.errors import CorruptDataError, DataError
from spatialgrad.data.files.listing import find_files
from support.data_files import tar_bytes, tar_folder

NAMES = ["train/cat/1.jpg", "train/cat/deep/2.jpg", "train/dog/1.png", "train/top.jpg", "val/cat/3.jpg"]
HIDDEN = ["train/cat/._1.jpg", "train/.ipynb_checkpoints/1.jpg", "train/__MACOSX/1.jpg", ".git/objects/1.jpg"]


@pytest.fixture(params=["folder", "archive"])
def place(request, tmp_path):
    for name in [*NAMES, *HIDDEN]:
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
    assert files.sizes().tolist() == [len(name) for name in names]
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


def test_what_is_no_place_is_refused(tmp_path):
    (tmp_path / "set.tar.gz").write_bytes(b"")
    for name in ("set.tar.gz", "absent"):
        with pytest.raises(DataError, match=f"{name} is neither a folder nor an uncompressed tar archive"):
            find_files(tmp_path / name, ["*"])
    link = tarfile.TarInfo("a/b")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    (tmp_path / "link.tar").write_bytes(tar_bytes([(link, b"")]))
    with pytest.raises(CorruptDataError, match="'a/b', which is neither a plain file nor a folder"):
        find_files(tmp_path / "link.tar", ["a/*"])
