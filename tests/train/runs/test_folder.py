"""Who may write to a run's folder, and what is in its files."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from spatialgrad.train import ConfigError, FolderInUseError, OtherConfigError, StorageError, TrainConfig
from spatialgrad.train.runs.folder import Lines, claim, locked, read_config, read_lines, write_json
from support.training import Process, tiny, wait_for


def hold(folder):
    with locked(folder):
        (folder / "held").touch()
        os.read(os.pipe()[0], 1)  # for ever


def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path):
    process = Process(tmp_path, function=hold)
    wait_for((tmp_path / "held").exists)
    with pytest.raises(FolderInUseError, match=f"process {process._process.pid} on") as caught, locked(tmp_path):
        pass
    assert caught.value.exit_code == 75
    process.kill()
    with locked(tmp_path):
        pass


def test_the_same_process_is_refused_too(tmp_path):
    with locked(tmp_path), pytest.raises(FolderInUseError), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file"), locked(tmp_path / "file" / "run"):
        pass


def test_the_config_comes_back(tmp_path):
    config = tiny(tmp_path, "sgs")
    claim(tmp_path, config)
    assert read_config(tmp_path) == config
    claim(tmp_path, config)


def test_another_config_is_refused_with_the_difference(tmp_path):
    config = tiny(tmp_path, "sgs")
    claim(tmp_path, config)
    other = replace(config, seed=1, optimizer=replace(config.optimizer, lr=0.2))
    with pytest.raises(OtherConfigError) as caught:
        claim(tmp_path, other)
    message = str(caught.value)
    assert "--optimizer.lr: 0.05 there, 0.2 requested" in message
    assert "--seed: 0 there, 1 requested" in message
    assert "method" not in message
    assert caught.value.exit_code == 78
    assert read_config(tmp_path) == config


def test_another_machine_is_no_other_config(tmp_path):
    config = tiny(tmp_path)
    claim(tmp_path, config)
    claim(tmp_path, replace(config, machine=replace(config.machine, devices=2, workers=3), tensorboard=True))
    with pytest.raises(OtherConfigError, match="precision"):
        claim(tmp_path, replace(config, machine=replace(config.machine, precision="bf16-mixed")))


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(OtherConfigError, match=r"thesis\.tex"):
        claim(tmp_path, TrainConfig())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_killed_before_the_config_was_there(tmp_path):
    (tmp_path / "run.lock").touch()
    (tmp_path / ".config.json.writing").write_text('{"mod')
    claim(tmp_path, TrainConfig())
    assert read_config(tmp_path) == TrainConfig()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"modle": {}}', '{"seed": "a"}', '{"model": {"name": "vgg111"}}'])
def test_a_config_that_cannot_be_understood(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_config(tmp_path)


def test_no_run_there(tmp_path):
    with pytest.raises(ConfigError, match="not a run's folder"):
        read_config(tmp_path / "nowhere")


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


def test_json_is_whole_or_as_before(tmp_path):
    write_json(tmp_path / "a.json", {"x": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"x": object()})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
