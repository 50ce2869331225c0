"""A checkpoint is whole or not there, whatever happens while it is written or lies on the disk."""

import errno
import os
import pickle
import random
import zipfile
from contextlib import suppress

import pytest
import torch
from spatialgrad.train.runs import checkpoint as module

from spatialgrad.train import CheckpointError, StorageError
from spatialgrad.train.checkpoint import load_checkpoint, read_checkpoint, save_checkpoint


def state(step):
    weight = torch.full((100, 3), float(step))
    position = {"format": 1, "step": step, "epoch": 0, "batch": step}
    return {**position, "model": {"w": weight}, "optimizer": {"state": {0: weight * 2}}}


@pytest.fixture
def folder(tmp_path):
    save_checkpoint(tmp_path, state(1))
    save_checkpoint(tmp_path, state(2))
    return tmp_path


def loaded_step(folder, said=None):
    found = load_checkpoint(folder, (said if said is not None else []).append)
    assert torch.equal(found["model"]["w"], torch.full((100, 3), float(found["step"])))
    return found["step"]


def test_the_newest_is_read_and_the_one_before_it_is_kept(folder):
    assert loaded_step(folder) == 2
    assert read_checkpoint(folder / "checkpoint.previous.pt")["step"] == 1
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint.previous.pt", "checkpoint.pt"]


def test_no_checkpoint_is_none(tmp_path):
    assert load_checkpoint(tmp_path, print) is None


def test_every_flipped_bit_is_noticed(folder):
    content = (folder / "checkpoint.pt").read_bytes()
    numbers = random.Random(0)
    unnoticed = 0
    for _ in range(200):
        damaged = bytearray(content)
        damaged[numbers.randrange(len(content))] ^= 1 << numbers.randrange(8)
        (folder / "checkpoint.pt").write_bytes(damaged)
        with suppress(CheckpointError):
            # A byte in which nothing is stored, such as a date.
            assert str(read_checkpoint(folder / "checkpoint.pt")) == str(state(2))
            unnoticed += 1
    assert unnoticed < 100


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\0" * len(b)])
def test_the_previous_one_is_used_when_the_newest_is_damaged(folder, damage):
    (folder / "checkpoint.pt").write_bytes(damage((folder / "checkpoint.pt").read_bytes()))
    said = []
    assert loaded_step(folder, said) == 1
    assert "checkpoint.pt is damaged" in said[0]
    assert "step 1" in said[0]
    # The next one must not push the good one out in favour of the damaged one.
    assert not (folder / "checkpoint.pt").exists()
    save_checkpoint(folder, state(3))
    assert loaded_step(folder) == 3
    assert read_checkpoint(folder / "checkpoint.previous.pt")["step"] == 1


def test_killed_between_the_two_renames(folder):
    (folder / "checkpoint.pt").replace(folder / "checkpoint.previous.pt")
    assert loaded_step(folder) == 2


def test_both_damaged(folder):
    for path in folder.iterdir():
        path.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="No intact checkpoint is left") as caught:
        load_checkpoint(folder, print)
    assert caught.value.exit_code == 65
    assert (folder / "checkpoint.pt").exists()  # nothing was thrown away


def test_a_pickle_with_code_is_refused(tmp_path):
    class Malicious:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "executed"),))

    with zipfile.ZipFile(tmp_path / "checkpoint.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Malicious()))
        archive.writestr("archive/version", "3")
    with pytest.raises(CheckpointError):
        read_checkpoint(tmp_path / "checkpoint.pt")
    assert not (tmp_path / "executed").exists()


def test_a_foreign_file_is_no_checkpoint(tmp_path):
    torch.save({"w": torch.zeros(2)}, tmp_path / "checkpoint.pt")
    with pytest.raises(CheckpointError, match="not a checkpoint of a training"):
        read_checkpoint(tmp_path / "checkpoint.pt")


@pytest.mark.parametrize("where", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_ones(folder, where, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    if where == "write":
        monkeypatch.setattr(module._ErrorKeepingWriter, "write", failing_write)
    elif where == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(module.Path, "replace", full)
    with pytest.raises(StorageError, match="No space left on device") as caught:
        save_checkpoint(folder, state(3))
    assert caught.value.exit_code == 74
    assert str(folder / "checkpoint.pt") in str(caught.value)
    monkeypatch.undo()
    assert loaded_step(folder) == 2
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint.previous.pt", "checkpoint.pt"]


def failing_write(self, data):
    self.error = OSError(errno.ENOSPC, "No space left on device")
    raise self.error
