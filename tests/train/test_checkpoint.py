"""A checkpoint is whole or not there, whatever happens while it is written or lies on the disk."""

import errno
import os
import pickle
import random
import zipfile
from contextlib import suppress

import pytest
import torch

from spatialgrad.train import CheckpointError, StorageError
from spatialgrad.train.checkpoint import load_checkpoint, read_checkpoint, save_checkpoint


def state(step):
    weight = torch.full((100, 3), float(step))
    return {"format": 2, "step": step, "model": {"w": weight}, "optimizer": {"state": {0: weight * 2}}}


@pytest.fixture
def folder(tmp_path):
    assert load_checkpoint(tmp_path) is None
    save_checkpoint(tmp_path, state(1))
    save_checkpoint(tmp_path, state(2))
    return tmp_path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_is_read_and_the_one_before_it_is_kept(folder):
    found = load_checkpoint(folder)
    assert found["step"] == 2
    assert torch.equal(found["model"]["w"], torch.full((100, 3), 2.0))
    assert read_checkpoint(folder / "checkpoint.previous.pt")["step"] == 1
    assert names(folder) == ["checkpoint.previous.pt", "checkpoint.pt"]


def test_killed_between_the_two_renames(folder):
    (folder / "checkpoint.pt").replace(folder / "checkpoint.previous.pt")
    assert load_checkpoint(folder)["step"] == 2


def test_every_flipped_bit_is_noticed(folder):
    content = (folder / "checkpoint.pt").read_bytes()
    numbers = random.Random(0)
    unnoticed = 0
    for _ in range(100):
        damaged = bytearray(content)
        damaged[numbers.randrange(len(content))] ^= 1 << numbers.randrange(8)
        (folder / "checkpoint.pt").write_bytes(damaged)
        with suppress(CheckpointError):
            # A byte in which nothing is stored, such as a date.
            assert str(read_checkpoint(folder / "checkpoint.pt")) == str(state(2))
            unnoticed += 1
    assert unnoticed < 50


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\0" * len(b)])
def test_a_damaged_one_is_named_with_the_way_out(folder, damage):
    path = folder / "checkpoint.pt"
    path.write_bytes(damage(path.read_bytes()))
    before = {name: (folder / name).read_bytes() for name in names(folder)}
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt is damaged .*rename it to checkpoint\.pt") as caught:
        load_checkpoint(folder)
    assert caught.value.exit_code == 65
    assert {name: (folder / name).read_bytes() for name in names(folder)} == before
    (folder / "checkpoint.previous.pt").replace(path)
    assert load_checkpoint(folder)["step"] == 1


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
    with pytest.raises(CheckpointError, match="not a checkpoint of this version"):
        read_checkpoint(tmp_path / "checkpoint.pt")


def test_a_full_disk_leaves_the_old_ones(folder, monkeypatch):
    """The system's reason is named, not the place in torch's code where it was noticed."""

    class Full:
        def __init__(self, file):
            self.file = file

        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

        def __getattr__(self, name):
            return getattr(self.file, name)

    save = torch.save
    monkeypatch.setattr(torch, "save", lambda state, file: save(state, Full(file)))
    with pytest.raises(StorageError, match=r"cannot write .*checkpoint\.pt: No space left on device") as caught:
        save_checkpoint(folder, state(3))
    assert caught.value.exit_code == 74
    assert load_checkpoint(folder)["step"] == 2
    assert names(folder) == ["checkpoint.previous.pt", "checkpoint.pt"]
