import gzip
import io
import os
import resource
import tarfile
import tracemalloc
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spatialgrad.data.errors import CorruptDataError, DataError
from spatialgrad.data.files.archives import MAX_BYTES, extract, is_archive, open_tar, read_files, stem
from support.data_files import tar_bytes

FILES = [("set/a", b"first" * 1000), ("set/deep/b", b"second"), ("set/empty", b"")]
MODES = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz", ".tar.xz": "w:xz", ".tar.bz2": "w:bz2"}


def _archive(tmp_path, members, ending=".tar"):
    path = tmp_path / f"set{ending}"
    path.write_bytes(tar_bytes(members, MODES[ending]))
    return path


def _with(name, **attributes):
    info = tarfile.TarInfo(name)
    for attribute, value in attributes.items():
        setattr(info, attribute, value)
    return info


def _link(name, target, kind=tarfile.SYMTYPE):
    return _with(name, type=kind, linkname=str(target))


@pytest.mark.parametrize("ending", MODES)
def test_extracts_everything(tmp_path, ending):
    archive = _archive(tmp_path, FILES, ending)
    assert is_archive(archive)
    assert stem(archive) == "set"
    extract(archive, tmp_path / "out")
    for name, content in FILES:
        assert (tmp_path / "out" / name).read_bytes() == content


@pytest.mark.parametrize("ending", MODES)
def test_reads_files_in_place(tmp_path, ending):
    archive = _archive(tmp_path, FILES, ending)
    assert read_files(archive, {"a", "b", "absent"}) == {"a": FILES[0][1], "b": FILES[1][1]}
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]


def test_extracts_only_the_top_folder(tmp_path):
    archive = _archive(tmp_path, [*FILES, ("other/c", b"")])
    extract(archive, tmp_path / "out", top="set")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a", "deep", "empty"]
    with pytest.raises(CorruptDataError, match="contains no folder absent"):
        extract(archive, tmp_path / "again", top="absent")
    assert {path.name for path in tmp_path.iterdir()} == {"set.tar", "out"}


MALICIOUS = {
    "parent within": lambda outside: [("set/../canary", b"x")],
    "link within": lambda outside: [(_link("canary", "set/good"), b"")],
    "hard link within": lambda outside: [(_link("canary", "set/good", tarfile.LNKTYPE), b"")],
    "parent": lambda outside: [("../canary", b"x")],
    "parent in the middle": lambda outside: [("set/../../canary", b"x")],
    "absolute": lambda outside: [(str(outside / "canary"), b"x")],
    "windows drive": lambda outside: [("C:\\canary", b"x")],
    "windows parent": lambda outside: [("..\\canary", b"x")],
    "link to a folder outside": lambda outside: [(_link("set/way", outside), b""), ("set/way/canary", b"x")],
    "link to the parent": lambda outside: [(_link("way", ".."), b""), ("way/canary", b"x")],
    "link to a file outside": lambda outside: [(_link("canary", outside / "canary"), b""), ("canary", b"x")],
    "hard link": lambda outside: [(_link("canary", outside / "secret", tarfile.LNKTYPE), b"")],
    "null byte": lambda outside: [(_with("harmless", pax_headers={"path": "set/a\0b"}), b"x")],
    "device": lambda outside: [(_with("null", type=tarfile.CHRTYPE), b"")],
    "pipe": lambda outside: [(_with("pipe", type=tarfile.FIFOTYPE), b"")],
}


def test_modes_owners_and_times_of_an_archive_are_ignored(tmp_path):
    folder = _with("set", type=tarfile.DIRTYPE, mode=0)
    file = _with("set/a", mode=0o6777, uid=1, uname="root", mtime=2**60)
    archive = _archive(tmp_path, [(folder, b""), (file, b"content"), (folder, b"")])
    extract(archive, tmp_path / "out")
    found = tmp_path / "out" / "set" / "a"
    assert found.read_bytes() == b"content"
    assert found.stat().st_mode & 0o7111 == 0
    assert found.stat().st_uid == os.getuid()


@pytest.mark.parametrize("second", [tarfile.DIRTYPE, tarfile.REGTYPE])
@pytest.mark.parametrize("first", [tarfile.DIRTYPE, tarfile.REGTYPE])
def test_a_name_is_a_file_or_a_folder_and_not_both(tmp_path, first, second):
    archive = _archive(tmp_path, [(_with("a", type=first), b""), (_with("a", type=second), b"")])
    if first == second == tarfile.DIRTYPE:
        extract(archive, tmp_path / "out")
        return
    with pytest.raises(CorruptDataError, match="contains a twice"):
        extract(archive, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {archive.name}


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
@pytest.mark.parametrize("attack", MALICIOUS)
def test_a_malicious_archive_does_nothing(tmp_path, attack, ending):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    archive = _archive(tmp_path, [("set/good", b"good"), *MALICIOUS[attack](outside)], ending)
    with pytest.raises(CorruptDataError, match=archive.name):
        extract(archive, inside / "out")
    assert list(inside.iterdir()) == []
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert {path.name for path in tmp_path.iterdir()} == {"outside", "inside", archive.name}


def test_links_are_not_followed_when_reading_in_place(tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    archive = _archive(tmp_path, [("other", b"x"), (_link("a", tmp_path / "secret"), b"")])
    assert read_files(archive, {"a"}) == {}


@pytest.mark.parametrize("ending", MODES)
def test_every_kind_of_truncation_is_noticed(tmp_path, ending):
    archive = _archive(tmp_path, FILES, ending)
    whole = archive.read_bytes()
    last_data = tar_bytes(FILES).rindex(b"set/empty") if ending == ".tar" else len(whole)
    for length in sorted({0, 1, 100, 511, 512, 700, *range(1000, last_data, 997), last_data - 5}):
        if length >= len(whole):
            continue
        archive.write_bytes(whole[:length])
        with pytest.raises(CorruptDataError, match=archive.name):
            extract(archive, tmp_path / "out")
        with pytest.raises(CorruptDataError, match=archive.name):
            read_files(archive, {"a"})
        assert [path.name for path in tmp_path.iterdir()] == [archive.name]


def test_an_archive_cut_between_two_members_is_noticed(tmp_path):
    whole = tar_bytes(FILES)
    archive = tmp_path / "set.tar"
    archive.write_bytes(whole[: whole.index(b"set/deep/b")])
    with pytest.raises(CorruptDataError, match="damaged header"):
        extract(archive, tmp_path / "out")


def test_a_damaged_header_in_the_middle_is_not_taken_for_the_end(tmp_path):
    whole = tar_bytes(FILES)
    archive = tmp_path / "set.tar"
    archive.write_bytes(whole.replace(b"set/deep/b", b"set/deep/X"))
    with tarfile.open(archive) as ordinary:
        assert len(ordinary.getmembers()) == 1, "tarfile notices by itself: the strict header is not needed"
    with pytest.raises(CorruptDataError, match="damaged header"):
        read_files(archive, {"a"})


def test_a_flipped_bit_in_compressed_data_is_noticed_though_every_file_is_there(tmp_path):
    data = bytearray(gzip.compress(tar_bytes(FILES)))
    data[-8] ^= 1  # the stored checksum, which stands after everything tarfile reads
    archive = tmp_path / "set.tar.gz"
    archive.write_bytes(data)
    with pytest.raises(CorruptDataError, match=r"set\.tar\.gz is truncated or damaged \(CRC check failed"):
        read_files(archive, {"a"})


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 3 * 512), byte=st.integers(0, 255))
def test_damaged_headers_give_our_error_or_stay_inside(tmp_path, position, byte):
    data = bytearray(tar_bytes([("set/a", b"first"), ("set/b", b"second")]))
    data[position] = byte
    archive = tmp_path / "set.tar"
    archive.write_bytes(data)
    try:
        files = read_files(archive, {"a", "b"})
    except CorruptDataError:
        return
    assert set(files) <= {"a", "b"}


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=0, max_size=2000))
def test_no_noise_is_an_archive(tmp_path, noise):
    for ending in MODES:
        archive = tmp_path / f"noise{ending}"
        archive.write_bytes(noise + b"\1")
        with pytest.raises(CorruptDataError), open_tar(archive) as tar:
            tar.getmembers()


def test_a_file_that_is_there_twice_is_refused(tmp_path):
    archive = _archive(tmp_path, [("a", b"1"), ("a", b"2")])
    with pytest.raises(CorruptDataError, match="contains a twice"):
        extract(archive, tmp_path / "out")
    with pytest.raises(CorruptDataError, match="contains a twice"):
        read_files(archive, {"a"})


def test_a_file_that_would_fill_the_memory_is_refused(tmp_path):
    info = tarfile.TarInfo("a")
    info.size = 1 << 40
    archive = tmp_path / "set.tar"
    archive.write_bytes(info.tobuf() + bytes(1024))
    with pytest.raises(CorruptDataError, match="1,099,511,627,776 bytes"):
        read_files(archive, {"a"})


def test_files_that_would_fill_the_memory_together_are_refused(tmp_path):
    archive = tmp_path / "set.tar"
    first, second = _with("a", size=1024), _with("b", size=MAX_BYTES - 512)
    archive.write_bytes(first.tobuf() + bytes(1024) + second.tobuf())
    with pytest.raises(CorruptDataError, match=r"contains b of 1,073,741,312 bytes, which is too large"):
        read_files(archive, {"b", "a"})


LONG_HEADERS = [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, b"X"]


def _long_header(kind, size):
    """A header for a long name or for attributes, and its content."""
    record = b"comment=" + b"x" * size
    content = b"%d %s\n" % (size, record[: size - len(b"%d  " % size)]) if kind in LONG_HEADERS[2:] else b"a" * size
    return _with("long", type=kind, size=size).tobuf() + content + bytes(-size % 512)


@pytest.mark.parametrize("kind", LONG_HEADERS)
def test_a_header_that_would_fill_the_memory_is_refused_before_it_is_read(tmp_path, kind):
    archive = tmp_path / "set.tar.gz"
    end = _with("b").tobuf() + bytes(1024)
    archive.write_bytes(gzip.compress(_long_header(kind, 60_000) + end))
    assert read_files(archive, {"b"}).keys() == ({"b"} if kind != tarfile.GNUTYPE_LONGNAME else set())
    archive.write_bytes(gzip.compress(_long_header(kind, 30_000_000) + end, 1))
    for read in (lambda: read_files(archive, {"b"}), lambda: extract(archive, tmp_path / "out")):
        with pytest.raises(CorruptDataError, match="a header of 30,000,000 bytes"), _little_memory():
            read()
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]


@contextmanager
def _little_memory():
    tracemalloc.start()
    try:
        yield
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 5_000_000


def test_headers_that_were_read_do_not_pile_up(tmp_path):
    archive = tmp_path / "set.tar.gz"
    member = _long_header(tarfile.XHDTYPE, 60_000) + _with("other").tobuf()
    archive.write_bytes(gzip.compress(300 * member + bytes(1024), 1))
    with _little_memory():
        read_files(archive, {"b"})


def test_global_attributes_that_pile_up_are_refused(tmp_path):
    records = [b"%d attribute%06d=x\n" % (len("22 attribute000000=x\n"), number) for number in range(200)]
    content = b"".join(records)
    header = _with("global", type=tarfile.XGLTYPE, size=len(content)).tobuf() + content + bytes(-len(content) % 512)
    archive = tmp_path / "set.tar"
    archive.write_bytes(header + _with("b").tobuf() + bytes(1024))
    with pytest.raises(CorruptDataError, match="more than 100 global attributes"):
        read_files(archive, {"b"})


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_a_thousand_headers_for_one_member_are_our_error(tmp_path, kind):
    archive = tmp_path / "set.tar"
    archive.write_bytes(2000 * _long_header(kind, 100) + _with("b").tobuf() + bytes(1024))
    with pytest.raises(CorruptDataError, match="damaged header"):
        read_files(archive, {"b"})


def _pax(**records):
    """An extended header with these attributes, and the header of the file that they belong to, without its content."""
    content = b""
    for key, value in records.items():
        line = f" {key.replace('__', '.')}={value}\n".encode()
        length = len(line) + len(str(len(line) + 2))
        content += b"%d%s" % (length, line)
    return _with("x", type=tarfile.XHDTYPE, size=len(content)).tobuf() + content + bytes(-len(content) % 512)


def _negative(size):
    """A header whose size is a negative number in binary."""
    header = bytearray(_with("set/b").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = size.to_bytes(12, "big", signed=True)
    header[148:156] = b"%06o\0 " % (sum(header) - sum(header[148:156]) + 8 * 32)
    return bytes(header)


SPARSE = {  # name → members, after `set/good`
    "old GNU format": _with("set/b", type=tarfile.GNUTYPE_SPARSE).tobuf(),
    "format 0.0": _pax(GNU__sparse__size=1 << 20, GNU__sparse__numblocks=0) + _with("set/b").tobuf(),
    "format 0.1": _pax(GNU__sparse__map="0,0", GNU__sparse__size=1 << 20) + _with("set/b").tobuf(),
    "format 1.0": _pax(GNU__sparse__major=1, GNU__sparse__minor=0, GNU__sparse__realsize=1 << 20)
    + _with("set/b", size=512).tobuf()
    + b"1\n0\n0\n".ljust(512, b"\0"),
}
NEGATIVE = {  # both lead back to the beginning of the archive, which `tarfile` takes for its end
    "in the header": _negative(-3 * 512),
    "in an attribute": _pax(size=-5 * 512) + _with("set/b").tobuf(),
}


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
@pytest.mark.parametrize("kind", [*SPARSE, *NEGATIVE])
def test_sparse_and_negative_members_are_refused(tmp_path, kind, ending):
    good = _with("set/good", size=4).tobuf() + b"good".ljust(512, b"\0")
    content = good + (SPARSE | NEGATIVE)[kind] + _with("set/last").tobuf() + bytes(1024)
    archive = tmp_path / f"set{ending}"
    archive.write_bytes(gzip.compress(content) if ending == ".tar.gz" else content)
    message = rf"set\{ending}.*(sparse file|has the size -|damaged header)"
    for read in (
        lambda: extract(archive, tmp_path / "out"),
        lambda: read_files(archive, {"good", "b", "last"}),
        lambda: read_files(archive, {"last"}),
    ):
        with pytest.raises(CorruptDataError, match=message):
            read()
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]


def test_a_damaged_attribute_in_the_middle_is_not_taken_for_the_end(tmp_path):
    good = _with("good").tobuf()
    for broken in (b"0 path=a\n", b"12 GNU.sparse.size=a\n"):
        header = _with("x", type=tarfile.XHDTYPE, size=len(broken)).tobuf() + broken.ljust(512, b"\0")
        archive = tmp_path / "set.tar"
        archive.write_bytes(good + header + _with("last").tobuf() + bytes(1024))
        with pytest.raises(CorruptDataError, match="damaged header"):
            read_files(archive, {"last"})


def test_a_disk_that_refuses_leaves_nothing_behind(tmp_path):
    archive = _archive(tmp_path, [("set/big", bytes(200_000))])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(DataError, match=r"cannot write .*out"):
            extract(archive, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["set.tar"]


def test_what_is_there_is_not_overwritten(tmp_path):
    archive = _archive(tmp_path, FILES)
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="already exists"):
        extract(archive, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_other_files_are_no_archives(tmp_path):
    (tmp_path / "set.zip").write_bytes(io.BytesIO().getvalue())
    assert not is_archive(tmp_path / "set.zip")
    assert not is_archive(tmp_path / "absent.tar")
    with pytest.raises(DataError, match=r"set\.zip is not an archive"):
        read_files(tmp_path / "set.zip", {"a"})
