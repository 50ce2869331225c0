import hashlib
import os
import resource
import sys
import threading
from contextlib import suppress
from dataclasses import replace

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


def _answer(status=200, **headers):
    def respond(handler):
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(CONTENT)

    return respond


@pytest.mark.parametrize("length", ["many", "-1", "", "1e6", "9" * 5000])
def test_a_bad_length_is_an_invalid_response(server, tmp_path, length):
    server.respond = _answer(Content_Length=length)
    with pytest.raises(UnreachableError, match=r"set\.bin: the server sent an invalid response \(Content-Length is '"):
        download(_remote(server), tmp_path, progress=silent)
    assert _names(tmp_path) == []
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("http://[::1/set.bin", "invalid response .*Invalid IPv6 URL"),
        ("http://localhost:port/set.bin", "invalid response .*nonnumeric port"),
        ("http://exa mple/set.bin", "invalid response .*control characters"),
        ("file:///etc/passwd", "responded 302 .*not allowed"),
        ("", "responded 302 .*infinite loop"),
        ("/set.bin", "responded 302 .*infinite loop"),
    ],
)
def test_a_bad_redirection_is_our_error(server, tmp_path, location, message):
    server.respond = _answer(302, Location=location, Content_Length="0")
    with pytest.raises(UnreachableError, match=rf"set\.bin.*({message})"):
        download(_remote(server), tmp_path, progress=silent)
    assert _names(tmp_path) == []


def test_one_byte_per_answer_is_given_up(server, tmp_path):
    server.cut_after = [1] * 100
    with pytest.raises(UnreachableError, match=r"cannot be reached .*4 bytes are kept"):
        download(_remote(server), tmp_path, progress=silent)
    assert len(server.requests) == 4


def test_the_same_bytes_again_and_again_are_given_up(server, tmp_path):
    """A server without ranges that breaks off early every other time would otherwise count as making progress."""
    server.ranges = False
    server.cut_after = [400_000, 1] * 50
    with pytest.raises(UnreachableError, match=r"cannot be reached .*bytes are kept"):
        download(_remote(server), tmp_path, progress=silent)
    assert len(server.requests) == 4


def test_a_transfer_that_is_too_slow_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr("spatialgrad.data.files.download.TIMEOUT", 0.2)
    stopped = threading.Event()

    def drip(handler):
        handler.send_response(200)
        handler.end_headers()
        for _ in range(1000):
            handler.wfile.write(b"x")
            if stopped.wait(0.02):
                break

    server.respond = drip
    try:
        with pytest.raises(UnreachableError, match=r"cannot be reached \(only [0-9]+ bytes in 0 seconds\)"):
            download(_remote(server), tmp_path, progress=silent)
    finally:
        stopped.set()
    assert len(server.requests) == 4


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_that_does_not_end_is_given_up(server, tmp_path, announced):
    sent = 0

    def endless(handler):
        nonlocal sent
        handler.send_response(200)
        if announced:
            handler.send_header("Content-Length", str(1 << 50))
        handler.end_headers()
        while sent < 100_000_000:
            sent += handler.wfile.write(CONTENT[:100_000])

    server.respond = endless
    remote = replace(_remote(server), max_bytes=2_000_000)
    with pytest.raises(CorruptDataError, match=r"set\.bin sends more than 2,000,000 bytes"):
        download(remote, tmp_path, progress=silent)
    assert _names(tmp_path) == []
    assert len(server.requests) == 1
    assert sent < 100_000_000


def test_a_body_that_is_announced_as_too_large_is_not_waited_for(server, tmp_path, monkeypatch):
    monkeypatch.setattr("spatialgrad.data.files.download.TIMEOUT", 0.2)
    stopped = threading.Event()

    def announce(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(1 << 50))
        handler.end_headers()
        stopped.wait(10)

    server.respond = announce
    try:
        with pytest.raises(CorruptDataError, match=r"set\.bin sends more than 2,000,000 bytes"):
            download(replace(_remote(server), max_bytes=2_000_000), tmp_path, progress=silent)
    finally:
        stopped.set()
    assert _names(tmp_path) == []
    assert len(server.requests) == 1


def test_a_file_of_the_largest_size_is_downloaded(server, tmp_path):
    remote = replace(_remote(server), max_bytes=len(CONTENT))
    assert download(remote, tmp_path, progress=silent).read_bytes() == CONTENT


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
