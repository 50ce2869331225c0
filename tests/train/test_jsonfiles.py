"""JSON is whole or as before, lines grow and are cut, and what is damaged is named."""

import errno
import json
import math
import os
from pathlib import Path

import pytest

from spatialgrad.train import DamagedFileError, StorageError
from spatialgrad.train.jsonfiles import JsonLines, read_json, read_lines, replacing, write_json


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_json_is_whole_or_as_before(tmp_path):
    write_json(tmp_path / "a.json", {"x": 1, "größer": [math.nan, Path("b")]})
    assert read_json(tmp_path / "a.json") == {"x": 1, "größer": [None, "b"]}
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"x": object()})
    assert json.loads((tmp_path / "a.json").read_text())["x"] == 1
    assert names(tmp_path) == ["a.json"]


@pytest.mark.parametrize("where", ["os.fsync", "pathlib.Path.replace"])
def test_a_full_disk_leaves_the_old_file(where, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    write_json(tmp_path / "a.json", {"x": 1})
    monkeypatch.setattr(where, full)
    with pytest.raises(StorageError, match=r"a\.json: No space left") as caught:
        write_json(tmp_path / "a.json", {"x": 2})
    assert caught.value.exit_code == 74
    assert read_json(tmp_path / "a.json") == {"x": 1}
    assert names(tmp_path) == ["a.json"]


@pytest.mark.parametrize("name", ["precious", "missing"])
def test_a_temporary_file_that_is_a_link_is_not_followed(tmp_path, name):
    (tmp_path / "precious").write_text("thesis")
    (tmp_path / ".checkpoint.pt.writing").symlink_to(tmp_path / name)
    with replacing(tmp_path / "checkpoint.pt") as file:
        file.write(b"state")
    assert (tmp_path / "precious").read_text() == "thesis"
    assert names(tmp_path) == ["checkpoint.pt", "precious"]


def test_lines_grow_and_are_cut(tmp_path):
    lines = JsonLines(tmp_path / "metrics.jsonl")
    assert lines.sync() == 0
    lines.append({"step": 1, "name": "a\u2028b\x85c\x0bd\r"})  # some of them end a line of text, but not one of JSON
    length = lines.sync()
    lines.append({"step": 2})
    lines.cut(length)
    lines.append({"step": 3})
    lines.close()
    assert read_lines(tmp_path / "metrics.jsonl") == [{"step": 1, "name": "a\u2028b\x85c\x0bd\r"}, {"step": 3}]
    with pytest.raises(DamagedFileError, match=r"metrics\.jsonl is damaged: \d+ bytes, but .* at 1000"):
        lines.cut(1000)


def test_an_unfinished_line_is_not_read_and_not_glued_to_the_next(tmp_path):
    path = tmp_path / "timings.jsonl"
    path.write_text('{"a": 1}\n{"b":')
    assert read_lines(path) == [{"a": 1}]
    lines = JsonLines(path)
    lines.append({"c": 3})
    lines.close()
    assert read_lines(path) == [{"a": 1}, {"c": 3}]
    assert read_lines(tmp_path / "nothing.jsonl") == []


def test_lines_on_a_full_disk():
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    lines = JsonLines(Path("/dev/full"))
    with pytest.raises(StorageError, match="No space left"):
        lines.append({"step": 1})
    lines.close()


@pytest.mark.parametrize("line", [b"{", b"[1]", b"\xff", b"", b"[" * 100_000], ids=lambda line: repr(line[:9]))
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"epoch": 0}\n' + line + b'\n{"epoch": 2}\n')
    with pytest.raises(DamagedFileError, match=r"line 2 of .*metrics\.jsonl is damaged") as caught:
        read_lines(path)
    assert caught.value.exit_code == 65
