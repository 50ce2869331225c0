import tarfile

import pytest

from spatialgrad.data.errors import CorruptDataError, DataError
from spatialgrad.data.files.archives import extract, is_archive, read_files, stem
from support.data_files import tar_bytes

FILES = [("set/a", b"first" * 1000), ("set/deep/b", b"second"), ("set/empty", b"")]
MODES = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz", ".tar.xz": "w:xz", ".tar.bz2": "w:bz2"}


def archive_of(tmp_path, members, ending=".tar"):
    path = tmp_path / f"set{ending}"
    path.write_bytes(tar_bytes(members, MODES[ending]))
    return path


def member(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, str(target)
    return info, b""


@pytest.mark.parametrize("ending", MODES)
def test_an_archive_is_read_in_place_and_extracted(tmp_path, ending):
    archive = archive_of(tmp_path, FILES, ending)
    assert is_archive(archive)
    assert stem(archive) == "set"
    assert read_files(archive, {"a", "b", "absent"}) == {"a": FILES[0][1], "b": FILES[1][1]}
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]
    extract(archive, tmp_path / "out")
    for name, content in FILES:
        assert (tmp_path / "out" / name).read_bytes() == content
    extract(archive, tmp_path / "part", top="set")
    assert sorted(path.name for path in (tmp_path / "part").iterdir()) == ["a", "deep", "empty"]
    with pytest.raises(CorruptDataError, match="contains no folder absent"):
        extract(archive, tmp_path / "again", top="absent")
    with pytest.raises(DataError, match="out already exists; remove it"):
        extract(archive, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {archive.name, "out", "part"}


@pytest.mark.parametrize(
    "members",
    [
        lambda outside: [("../canary", b"x")],
        lambda outside: [member("way", tarfile.SYMTYPE, outside), ("way/canary", b"x")],
        lambda outside: [member("canary", tarfile.LNKTYPE, outside / "secret")],
        lambda outside: [member("null", tarfile.CHRTYPE)],
    ],
    ids=["name", "link", "hard link", "device"],
)
def test_nothing_in_an_archive_leads_out_of_its_folder(tmp_path, members):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    archive = archive_of(tmp_path, [("set/good", b"good"), *members(outside)])
    with pytest.raises(CorruptDataError, match=archive.name):
        extract(archive, inside / "out")
    assert read_files(archive, {"canary"}) in ({}, {"canary": b"x"})  # what the archive itself contains
    assert list(inside.iterdir()) == []
    assert [path.name for path in outside.iterdir()] == ["secret"]


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.xz"])
def test_truncation_is_noticed(tmp_path, ending):
    archive = archive_of(tmp_path, FILES, ending)
    whole = archive.read_bytes()
    # A plain archive ends with blocks of zeros, the first of which must be there.
    end = tar_bytes(FILES).rindex(b"set/empty") + 512 if ending == ".tar" else len(whole) - 1
    for length in (0, 100, 512, 3000, end):
        archive.write_bytes(whole[: min(length, end)])
        for read in (lambda: extract(archive, tmp_path / "out"), lambda: read_files(archive, {"a"})):
            with pytest.raises(CorruptDataError, match=archive.name):
                read()
        assert [path.name for path in tmp_path.iterdir()] == [archive.name]


def test_damage_in_the_middle_is_not_taken_for_the_end(tmp_path):
    archive = tmp_path / "set.tar"
    archive.write_bytes(tar_bytes(FILES).replace(b"set/deep/b", b"set/deep/X"))
    with pytest.raises(CorruptDataError, match="a header is damaged"):
        read_files(archive, {"a"})
    archive = archive_of(tmp_path, FILES, ".tar.gz")
    content = bytearray(archive.read_bytes())
    content[-8] ^= 1
    archive.write_bytes(content)
    with pytest.raises(CorruptDataError, match="CRC check failed"):
        read_files(archive, {"a"})
