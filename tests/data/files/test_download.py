import hashlib

import pytest

from spatialgrad.data.errors import CorruptDataError, DataError, UnreachableError
from spatialgrad.data.files import download as module
from spatialgrad.data.files.download import download
from support.data_files import file_server

CONTENT = b"image data" * 10_000
CHECKSUM = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with file_server() as server:
        server.files["set.tar"] = CONTENT
        yield server


def test_a_file_is_downloaded_once(server, tmp_path):
    for _ in range(2):
        path = download(server.url("set.tar"), CHECKSUM, tmp_path / "new")
        assert path == tmp_path / "new" / "set.tar"
        assert path.read_bytes() == CONTENT
    assert len(server.requests) == 1
    path.write_bytes(b"damaged")
    assert download(server.url("set.tar"), CHECKSUM, tmp_path / "new").read_bytes() == CONTENT


def test_an_interrupted_transfer_is_tried_again(server, tmp_path):
    server.cut_after = [1000, 50_000]
    assert download(server.url("set.tar"), CHECKSUM, tmp_path).read_bytes() == CONTENT
    assert len(server.requests) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["set.tar"]


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda server: server.files.clear(), UnreachableError, r"set\.tar cannot be downloaded \(404"),
        (lambda server: server.cut_after.extend([1000] * 9), UnreachableError, "cannot be downloaded"),
        (lambda server: server.files.update({"set.tar": b"x"}), CorruptDataError, "whose checksum is not md5:"),
    ],
)
def test_a_failed_download_is_named_and_leaves_nothing(server, tmp_path, spoil, error, message):
    spoil(server)
    with pytest.raises(error, match=message):
        download(server.url("set.tar"), CHECKSUM, tmp_path)
    assert len(server.requests) == 1 + module.RETRIES
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write to"):
        download(server.url("set.tar"), CHECKSUM, tmp_path / "file" / "below")
