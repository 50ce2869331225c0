"""Logs of JSON lines: they grow, are cut to a checkpoint, and say so when something is wrong with them."""

import os
from pathlib import Path

import pytest
from spatialgrad.train.runs.lines import Lines, Logs

from spatialgrad.train import DamagedFileError, StorageError
from spatialgrad.train.jsonfiles import read_lines


def test_lines_grow_and_are_cut(tmp_path):
    lines = Lines(tmp_path / "metrics.jsonl")
    assert lines.sync() == 0
    lines.append({"step": 1, "name": "größer"})
    length = lines.sync()
    lines.append({"step": 2})
    lines.cut(length)
    lines.append({"step": 3})
    lines.close()
    assert [entry["step"] for entry in read_lines(tmp_path / "metrics.jsonl")] == [1, 3]


def test_an_unfinished_line_is_not_read_and_not_glued_to_the_next(tmp_path):
    path = tmp_path / "timings.jsonl"
    path.write_text('{"a": 1}\n{"b":')
    assert read_lines(path) == [{"a": 1}]
    lines = Lines(path)
    lines.append({"c": 3})
    lines.close()
    assert read_lines(path) == [{"a": 1}, {"c": 3}]


def test_lines_that_got_lost_are_missed(tmp_path):
    lines = Lines(tmp_path / "metrics.jsonl")
    with pytest.raises(StorageError, match="has 0 bytes"):
        lines.cut(10)


def test_lines_on_a_full_disk():
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    lines = Lines(Path("/dev/full"))
    with pytest.raises(StorageError, match="No space left"):
        lines.append({"step": 1})
    lines.close()


@pytest.mark.parametrize("line", [b"{", b"[1]", b"3", b"\xff", b"", b"[" * 100_000], ids=lambda line: repr(line[:9]))
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"epoch": 0}\n' + line + b'\n{"epoch": 2}\n')
    with pytest.raises(DamagedFileError, match=r"line 2 of .*metrics\.jsonl is damaged") as caught:
        read_lines(path)
    assert caught.value.exit_code == 65


def test_any_character_can_be_logged(tmp_path):
    """Some of them end a line of text, but not one of JSON."""
    lines = Lines(tmp_path / "log.jsonl")
    lines.append({"name": "a\u2028b\x85c\x0bd\r"})
    lines.close()
    assert read_lines(tmp_path / "log.jsonl") == [{"name": "a\u2028b\x85c\x0bd\r"}]


def written(folder, epochs=3):
    logs = Logs(folder, ["scalings.jsonl"])
    for epoch in range(epochs):
        logs.append("scalings.jsonl", {"update": epoch})
        logs.append("metrics.jsonl", {"epoch": epoch})
    lengths = logs.sync()
    logs.close()
    return logs, lengths


def test_logs_are_checked_before_any_is_cut(tmp_path):
    logs, lengths = written(tmp_path)
    logs.check(lengths, 3)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(DamagedFileError, match="has 3 lines, but the checkpoint was written after 4 epochs"):
        logs.check(lengths, 4)
    with pytest.raises(StorageError, match=r"scalings\.jsonl has"):
        logs.check({**lengths, "scalings.jsonl": 1000}, 3)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_logs_without_a_checkpoint_are_set_aside(tmp_path):
    for number in (1, 2):
        logs, _ = written(tmp_path, epochs=number)
        assert logs.start_over() == [f"metrics.old-{number}.jsonl", f"scalings.old-{number}.jsonl"]
    assert [len(read_lines(tmp_path / f"metrics.old-{number}.jsonl")) for number in (1, 2)] == [1, 2]
    assert read_lines(tmp_path / "metrics.jsonl") == []


def test_logs_of_less_than_an_epoch_are_dropped(tmp_path):
    (tmp_path / "scalings.jsonl").write_text('{"update": 1}\n')
    (tmp_path / "metrics.jsonl").write_text('{"epo')
    assert Logs(tmp_path, ["scalings.jsonl"]).start_over() == []
    assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {"metrics.jsonl": 0, "scalings.jsonl": 0}
