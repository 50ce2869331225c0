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


MALICIOUS = {
    "parent": lambda outside: [("../canary", b"x")],
    "parent in the middle": lambda outside: [("set/../../canary", b"x")],
    "link": lambda outside: [member("canary", tarfile.SYMTYPE, "set/good")],
    "link to a folder outside": lambda outside: [member("way", tarfile.SYMTYPE, outside), ("way/canary", b"x")],
    "link to the parent": lambda outside: [member("way", tarfile.SYMTYPE, ".."), ("way/canary", b"x")],
    "hard link": lambda outside: [member("canary", tarfile.LNKTYPE, outside / "secret")],
    "device": lambda outside: [member("null", tarfile.CHRTYPE)],
    "pipe": lambda outside: [member("pipe", tarfile.FIFOTYPE)],
}


@pytest.mark.parametrize("attack", MALICIOUS)
def test_a_malicious_archive_does_nothing(tmp_path, attack):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    archive = archive_of(tmp_path, [("set/good", b"good"), *MALICIOUS[attack](outside)])
    with pytest.raises(CorruptDataError, match=archive.name):
        extract(archive, inside / "out")
    assert read_files(archive, {"canary"}) in ({}, {"canary": b"x"})  # what the archive itself contains
    assert list(inside.iterdir()) == []
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_an_absolute_name_stays_inside(tmp_path):
    archive = archive_of(tmp_path, [(str(tmp_path / "canary"), b"x")])
    extract(archive, tmp_path / "out")
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("ending", MODES)
def test_every_kind_of_truncation_is_noticed(tmp_path, ending):
    archive = archive_of(tmp_path, FILES, ending)
    whole = archive.read_bytes()
    # A plain archive ends with blocks of zeros, the first of which must be there.
    end = tar_bytes(FILES).rindex(b"set/empty") + 512 if ending == ".tar" else len(whole)
    for length in sorted({0, 1, 100, 511, 512, 700, 1024, *range(1000, end, 997), end - 5, end}):
        if length >= len(whole):
            continue
        archive.write_bytes(whole[:length])
        for read in (lambda: extract(archive, tmp_path / "out"), lambda: read_files(archive, {"a"})):
            with pytest.raises(CorruptDataError, match=archive.name):
                read()
        assert [path.name for path in tmp_path.iterdir()] == [archive.name]


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
def test_damage_in_the_middle_is_not_taken_for_the_end(tmp_path, ending):
    archive = tmp_path / f"set{ending}"
    damaged = tar_bytes(FILES).replace(b"set/deep/b", b"set/deep/X")
    archive.write_bytes(damaged)
    with tarfile.open(archive) as ordinary:
        assert len(ordinary.getmembers()) == 1, "tarfile notices by itself: the check is not needed"
    with pytest.raises(CorruptDataError, match="a header is damaged"):
        read_files(archive, {"a"})


def test_a_wrong_checksum_of_the_compression_is_noticed(tmp_path):
    archive = archive_of(tmp_path, FILES, ".tar.gz")
    content = bytearray(archive.read_bytes())
    content[-8] ^= 1
    archive.write_bytes(content)
    with pytest.raises(CorruptDataError, match="CRC check failed"):
        read_files(archive, {"a"})
