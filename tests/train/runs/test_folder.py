"""Who may write to a run's folder, and what is in its files."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from spatialgrad.train.runs.folder import claim

from spatialgrad.train import ConfigError, FolderInUseError, OtherConfigError, StorageError, TrainConfig
from spatialgrad.train.jsonfiles import replacing, write_json
from spatialgrad.train.locks import locked
from spatialgrad.train.recipes import segmentation_pocket
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


def lock_elsewhere(folder):
    try:
        with locked(folder):
            return 0
    except FolderInUseError as error:
        return error.exit_code


def test_a_refused_attempt_does_not_give_the_lock_away(tmp_path):
    """As when a notebook cell is run twice."""
    with locked(tmp_path):
        with pytest.raises(FolderInUseError, match="in use by this process"), locked(tmp_path / ".." / tmp_path.name):
            pass
        assert Process(tmp_path, function=lock_elsewhere).wait()[0] == 75
    assert Process(tmp_path, function=lock_elsewhere).wait()[0] == 0


def test_a_lock_that_is_a_link_is_refused(tmp_path):
    """The file says who holds it: what a link points to would be overwritten."""
    (tmp_path / "precious").write_text("thesis")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(StorageError, match=r"run\.lock"), locked(tmp_path / "run"):
        pass
    assert (tmp_path / "precious").read_text() == "thesis"


@pytest.mark.parametrize("name", ["precious", "missing"])
def test_a_temporary_file_that_is_a_link_is_not_followed(tmp_path, name):
    (tmp_path / "precious").write_text("thesis")
    link = tmp_path / ".checkpoint.pt.writing"
    link.symlink_to(tmp_path / name)
    with replacing(tmp_path / "checkpoint.pt") as file:
        file.write(b"state")
    assert (tmp_path / "precious").read_text() == "thesis"
    assert not (tmp_path / "missing").exists()
    assert (tmp_path / "checkpoint.pt").read_bytes() == b"state"
    assert not (tmp_path / "checkpoint.pt").is_symlink()
    assert not link.is_symlink()


def test_a_link_that_comes_back_is_not_followed(tmp_path, monkeypatch):
    """Someone who creates it between the removal and the creation wins nothing."""
    (tmp_path / "precious").write_text("thesis")
    remove = Path.unlink

    def spiteful(self, missing_ok=False):
        remove(self, missing_ok=missing_ok)
        self.symlink_to(tmp_path / "precious")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", spiteful)
        with pytest.raises(StorageError, match=r"checkpoint\.pt"), replacing(tmp_path / "checkpoint.pt") as file:
            file.write(b"state")
    assert (tmp_path / "precious").read_text() == "thesis"


def test_a_folder_in_the_place_of_the_temporary_file(tmp_path):
    (tmp_path / ".checkpoint.pt.writing").mkdir()
    with pytest.raises(StorageError, match=r"cannot write .*checkpoint\.pt"), replacing(tmp_path / "checkpoint.pt"):
        pass


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file"), locked(tmp_path / "file" / "run"):
        pass


def test_the_config_comes_back(tmp_path):
    config = tiny(tmp_path, "sgs")
    claim(tmp_path, config)
    assert Run.open(tmp_path).config == config
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
    assert Run.open(tmp_path).config == config


def test_another_machine_is_no_other_config(tmp_path):
    config = tiny(tmp_path)
    claim(tmp_path, config)
    claim(tmp_path, replace(config, machine=replace(config.machine, devices=2, workers=3), tensorboard=True))
    with pytest.raises(OtherConfigError, match="precision"):
        claim(tmp_path, replace(config, machine=replace(config.machine, precision="bf16-mixed")))


def test_another_backbone_is_another_config(tmp_path):
    """What a network starts from is part of what it becomes."""
    (tmp_path / "run").mkdir()
    config = segmentation_pocket(backbone=tmp_path / "imagenet")
    claim(tmp_path / "run", config)
    claim(tmp_path / "run", config)
    for other in (tmp_path / "cifar", None):
        with pytest.raises(OtherConfigError, match=r"--model\.backbone: '.*imagenet' there"):
            claim(tmp_path / "run", replace(config, model=replace(config.model, backbone=other)))


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(OtherConfigError, match=r"thesis\.tex"):
        claim(tmp_path, TrainConfig())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_killed_before_the_config_was_there(tmp_path):
    (tmp_path / "run.lock").touch()
    (tmp_path / ".config.json.writing").write_text('{"mod')
    claim(tmp_path, TrainConfig())
    assert Run.open(tmp_path).config == TrainConfig()


NO_CONFIGS = [
    *("", "{", "[]", "3", "\xff\xfe\0", "[" * 10**5, '{"modle": {}}', '{"seed": "a"}', '{"seed": 1' + "0" * 5000 + "}"),
    *('{"model": {"name": "vgg111"}}', '{"segmentation": {"scale": [1]}}', '{"data": {"image_size": ["a", 1]}}'),
]


@pytest.mark.parametrize("content", NO_CONFIGS, ids=lambda content: repr(content[:30]))
def test_a_config_that_cannot_be_understood(tmp_path, content):
    (tmp_path / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"config\.json"):
        Run.open(tmp_path).config


def test_no_run_there(tmp_path):
    with pytest.raises(ConfigError, match="not a run's folder"):
        Run.open(tmp_path / "nowhere").config


def test_json_is_whole_or_as_before(tmp_path):
    write_json(tmp_path / "a.json", {"x": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"x": object()})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
