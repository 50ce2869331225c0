import hashlib
import os
import resource
import sys
import threading
from contextlib import suppress

import pytest

from spatialgrad.data.errors import CorruptDataError, DataError, UnreachableError
from spatialgrad.data.files.download import RemoteFile, download
from support.data_files import file_server, silent

CONTENT = os.urandom(1_500_000)


@pytest.fixture
def server():
    with file_server() as server:
        server.files["set.bin"] = CONTENT
        yield server


def _remote(server, content=CONTENT, name="set.bin"):
    return RemoteFile(url=server.url(name), checksum=f"sha256:{hashlib.sha256(content).hexdigest()}")


def _names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_downloads_and_reports(server, tmp_path):
    lines = []
    path = download(_remote(server), tmp_path / "new" / "folder", progress=lines.append)
    assert path.read_bytes() == CONTENT
    assert _names(path.parent) == ["set.bin"]
    assert lines[0] == f"downloading {server.url('set.bin')}"
    assert lines[-1] == "set.bin: 1.5 of 1.5 MB"


def test_what_is_there_is_not_downloaded_again(server, tmp_path):
    download(_remote(server), tmp_path, progress=silent)
    download(_remote(server), tmp_path, progress=silent)
    assert len(server.requests) == 1


def test_a_damaged_file_is_replaced(server, tmp_path):
    (tmp_path / "set.bin").write_bytes(CONTENT[:-1] + b"?")
    assert download(_remote(server), tmp_path, progress=silent).read_bytes() == CONTENT


def test_a_transfer_that_breaks_off_goes_on_by_itself(server, tmp_path):
    server.cut_after = [400_000, 500_000]
    lines = []
    assert download(_remote(server), tmp_path, progress=lines.append).read_bytes() == CONTENT
    assert server.requests == [None, "bytes=400000-", "bytes=900000-"]
    assert "transfer interrupted after 400,000 bytes; resuming" in lines
    assert _names(tmp_path) == ["set.bin"]


def test_a_later_call_goes_on_where_an_earlier_one_had_to_give_up(server, tmp_path):
    server.cut_after = [400_000, 0, 0, 0, 0, 0]
    with pytest.raises(UnreachableError, match="400,000 bytes are kept"):
        download(_remote(server), tmp_path, progress=silent)
    assert _names(tmp_path) == ["set.bin.part"]
    server.cut_after, server.requests = [], []
    assert download(_remote(server), tmp_path, progress=silent).read_bytes() == CONTENT
    assert server.requests == ["bytes=400000-"]
    assert _names(tmp_path) == ["set.bin"]


def test_a_whole_part_is_only_verified(server, tmp_path):
    (tmp_path / "set.bin.part").write_bytes(CONTENT)
    assert download(_remote(server), tmp_path, progress=silent).read_bytes() == CONTENT
    assert _names(tmp_path) == ["set.bin"]


@pytest.mark.parametrize("length", [1000, len(CONTENT) + 10])
def test_a_part_of_something_else_is_thrown_away(server, tmp_path, length):
    (tmp_path / "set.bin.part").write_bytes(bytes(length))
    lines = []
    assert download(_remote(server), tmp_path, progress=lines.append).read_bytes() == CONTENT
    assert any("does not match; starting over" in line for line in lines)


def test_a_server_without_ranges_sends_it_all_again(server, tmp_path):
    server.ranges = False
    server.cut_after = [400_000]
    assert download(_remote(server), tmp_path, progress=silent).read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_and_nothing_stays(server, tmp_path):
    with pytest.raises(CorruptDataError, match=r"/set\.bin sent a file whose checksum is not sha256:"):
        download(_remote(server, content=b"other"), tmp_path, progress=silent)
    assert _names(tmp_path) == []


def test_a_file_that_the_server_does_not_have(server, tmp_path):
    with pytest.raises(UnreachableError, match="responded 404"):
        download(_remote(server, name="absent"), tmp_path, progress=silent)
    assert _names(tmp_path) == []


def test_a_host_that_does_not_answer(tmp_path):
    with file_server() as server:
        remote = _remote(server)
    with pytest.raises(UnreachableError, match="cannot be reached"):
        download(remote, tmp_path, progress=silent)
    assert _names(tmp_path) == []


def test_a_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="cannot write to"):
        download(_remote(server), tmp_path / "file" / "folder", progress=silent)


def test_a_full_disk_is_not_taken_for_a_broken_transfer(server, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, hard))
    try:
        with pytest.raises(DataError, match=r"cannot write .*set\.bin\.part"):
            download(_remote(server), tmp_path, progress=silent)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(server.requests) == 1
    assert download(_remote(server), tmp_path, progress=silent).read_bytes() == CONTENT


def test_a_progress_bar_is_drawn_on_a_terminal(server, tmp_path, monkeypatch):
    parent, child = os.openpty()
    drawn = []

    def read():
        # Linux ends a terminal that is closed with an error.
        with suppress(OSError):
            while chunk := os.read(parent, 65536):
                drawn.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with os.fdopen(child, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        download(_remote(server), tmp_path, progress=silent)
    reader.join()
    os.close(parent)
    assert b"1.5/1.5 MB" in b"".join(drawn)
