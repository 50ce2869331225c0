"""What is on disk of a training: read from a folder or a record, claimed by one run alone, damaged by name."""

import json
import os
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from spatialgrad.train import (
    CheckpointError,
    ConfigError,
    DamagedFileError,
    FolderInUseError,
    OtherConfigError,
    Run,
    StorageError,
    TrainConfig,
    resume,
)
from spatialgrad.train.checkpoint import read_checkpoint
from spatialgrad.train.identity import Identity
from spatialgrad.train.jsonfiles import read_json, read_lines
from spatialgrad.train.locks import is_locked, locked
from support.training import SILENT, Process, assert_same_run, at_step, quietly, stop_at, tiny, wait_for

CONSTANT = {"name": "constant", "warmup_epochs": 0.5}


def content(folder):
    """Everything but the lock, which names the process."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "run.lock"}


# Reading.


def test_parts_of_a_finished_run(finished):
    run = Run.open(finished)
    assert (run.state, run.epoch, run.has_checkpoint, run.failure) == ("finished", 3, True, None)
    assert replace(run.config, out=None) == replace(tiny(finished, "sgs"), out=None)
    assert [entry["epoch"] for entry in run.metrics] == [0, 1, 2]
    assert [entry["update"] for entry in run.scalings] == [1, 2]
    assert (run.growth, run.distances) == ([], [])
    assert [entry["epoch"] for entry in run.timings if "epoch" in entry] == [0, 1, 2]
    assert run.environment["versions"]["torch"] == torch.__version__
    assert run.digest == run.identity.digest == run.result.identity
    assert run.identity.processes == 1
    assert run.checkpoint()["step"] == 15


def test_an_archived_record_reads_like_a_folder(finished):
    run = Run.open(finished)
    files = {"config": "config.json", "result": "result.json", "environment": "environment.json"}
    record = {name: read_json(finished / file) for name, file in files.items()}
    record |= {"metrics": run.metrics, "scalings": run.scalings, "timings": run.timings}
    archived = Run.from_record(record, "kept/seed0")
    for part in ("config", "result", "environment", "metrics", "scalings", "timings", "growth", "digest", "identity"):
        assert getattr(archived, part) == getattr(run, part)
    assert (archived.state, archived.epoch, archived.has_checkpoint) == ("finished", 3, False)
    record["result"] = {"value": 1}
    with pytest.raises(DamagedFileError, match=r"result\.json of kept/seed0 is damaged"):
        _ = Run.from_record(record, "kept/seed0").result


def test_states(interrupted, tmp_path):
    run = Run.open(tmp_path / "planned")
    assert (run.state, run.exists, run.epoch) == ("new", False, 0)
    run.plan(tiny(tmp_path / "planned"))
    assert (run.state, run.exists) == ("new", True)
    run.record_failure("out of memory", 1)
    assert (run.state, run.failure) == ("failed", "out of memory")
    run.forget_failure()
    assert run.state == "new"
    run = Run.open(interrupted)
    assert (run.state, run.epoch, run.result) == ("interrupted", 1, None)
    with locked(interrupted):
        assert run.state == "running"


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(ConfigError, match=r"is not a run's folder: it has no config\.json"):
        _ = Run.open(tmp_path / "nowhere").config
    with pytest.raises(CheckpointError, match="has no checkpoint yet; train it first"):
        Run.open(tmp_path).checkpoint()


# Damaged files are errors that name them.


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b"\xff\xfe\0", b"[" * 100_000], ids=lambda text: repr(text[:4]))
@pytest.mark.parametrize("file", ["config", "result", "environment"])
def test_damaged_json(file, damage, finished):
    (finished / f"{file}.json").write_bytes(damage)
    with pytest.raises(DamagedFileError, match=rf"{file}\.json is damaged"):
        getattr(Run.open(finished), file)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"modle": {}}, "unknown field 'modle'; did you mean 'model'"),
        ({"model": {"name": "vgg111"}}, "did you mean 'vgg11'"),
        ({"segmentation": {"scale": [1]}}, r"--segmentation.scale \(segmentation.scale\): expected `array` of length"),
    ],
)
def test_a_config_that_cannot_be_understood(values, message, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=rf"config\.json: .*{message}"):
        _ = Run.open(tmp_path).config


def test_a_damaged_result_ends_no_other_way(finished):
    (finished / "result.json").write_text("{")
    with pytest.raises(DamagedFileError, match=r"result\.json is damaged"):
        quietly(tiny(finished, "sgs"))
    (finished / "result.json").unlink()
    again, _ = quietly(tiny(finished, "sgs"))
    assert again.value == Run.open(finished).metrics[-1]["test_accuracy"]


@pytest.mark.parametrize("file", ["metrics.jsonl", "scalings.jsonl"])
def test_a_log_that_is_shorter_than_at_the_checkpoint(file, interrupted):
    os.truncate(interrupted / file, 10)
    before = content(interrupted)
    with pytest.raises(DamagedFileError, match=f"{file} is damaged: 10 bytes, but"):
        resume(interrupted, console=SILENT)
    assert content(interrupted) == before


def test_a_checkpoint_that_does_not_fit(interrupted):
    state = read_checkpoint(interrupted / "checkpoint.pt")
    state["model"] = {name: value[:1] for name, value in state["model"].items() if value.ndim}
    torch.save(state, interrupted / "checkpoint.pt")
    with pytest.raises(CheckpointError, match="does not fit this run") as caught:
        resume(interrupted, console=SILENT)
    assert caught.value.exit_code == 65


# Locks.


def hold(folder):
    with locked(folder):
        (folder / "held").touch()
        os.read(os.pipe()[0], 1)  # for ever


def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path):
    assert not is_locked(tmp_path)
    process = Process(tmp_path, function=hold)
    wait_for((tmp_path / "held").exists)
    with pytest.raises(FolderInUseError, match=f"process {process._process.pid} on") as caught, locked(tmp_path):
        pass
    assert caught.value.exit_code == 75
    assert is_locked(tmp_path)
    process.kill()
    assert not is_locked(tmp_path)
    with locked(tmp_path):
        pass


def hold_with_a_worker(folder):
    with locked(folder):
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        (folder / "held").touch()
        os.read(os.pipe()[0], 1)


def test_workers_do_not_keep_the_lock_of_a_process_that_was_killed(tmp_path):
    process = Process(tmp_path, function=hold_with_a_worker)
    wait_for((tmp_path / "held").exists)
    process.kill()
    with locked(tmp_path):
        pass


def test_a_second_training_in_the_same_process(tmp_path):
    """A notebook cell that is run twice: the second is refused, and the first keeps the folder to itself."""
    found = []

    def again(trainer):
        if not found:
            with pytest.raises(FolderInUseError, match=f"in use by process {os.getpid()}") as caught:
                quietly(tiny(tmp_path / "run"))
            found.extend([caught.value, Process("resume", tmp_path / "run").wait()[0]])

    with at_step(7, again):
        quietly(tiny(tmp_path / "run"))
    assert found[1] == 75
    assert len(read_lines(tmp_path / "run" / "metrics.jsonl")) == 3


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    """Lustre without flock, for example: the existence of the file is the lock."""

    def missing(*arguments):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", missing)
    with locked(tmp_path):
        assert is_locked(tmp_path)
        with pytest.raises(FolderInUseError, match=f"process {os.getpid()} .*then remove .*run.lock"), locked(tmp_path):
            pass
    assert not is_locked(tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file"), locked(tmp_path / "file" / "run"):
        pass


# Claiming.


def test_another_run_is_refused_with_the_difference(interrupted):
    before = content(interrupted)
    with pytest.raises(OtherConfigError, match="holds another run") as caught:
        quietly(tiny(interrupted, "sgs", seed=1, optimizer={"lr": 0.2}))
    assert "--optimizer.lr: 0.05 there, 0.2 requested" in str(caught.value)
    assert "--seed: 0 there, 1 requested" in str(caught.value)
    assert "--epochs" not in str(caught.value)
    assert caught.value.exit_code == 78
    assert content(interrupted) == before
    assert not is_locked(interrupted)


def test_other_data_and_processes_are_another_run(interrupted, tmp_path):
    run = Run.open(interrupted)
    for changed, message in (
        ({"data": "0" * 16}, "the images or labels of the data set: '"),
        ({"processes": 2}, "number of processes: 1 there, 2 requested"),
    ):
        with pytest.raises(OtherConfigError, match=message):
            Run.open(interrupted).claim(replace(run.identity, **changed))
    elsewhere = tiny(interrupted, "sgs", machine={"workers": 3, "threads": 2}, budget={"checkpoint_steps": 1})
    with Run.open(interrupted) as claimed:
        assert claimed.claim(replace(run.identity, config=elsewhere))["step"] == 7
        assert Run.open(interrupted).config.machine.workers == 3


def test_a_run_without_a_checkpoint_can_be_replaced(tmp_path):
    """A command that was killed at once, or planned and never started, does not stand in the way of a corrected one."""
    Run.open(tmp_path / "run").plan(tiny(tmp_path / "run", "dbb"))
    (tmp_path / "run" / "metrics.jsonl").write_text('{"epoch": 0}\n{"ep')
    quietly(tiny(tmp_path / "run", "sgs", epochs=1))
    run = Run.open(tmp_path / "run")
    assert (run.config.method.name, run.state, len(run.metrics)) == ("sgs", "finished", 1)


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / ".DS_Store").touch()
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(OtherConfigError, match=r"not a run's folder: it holds thesis\.tex but no config\.json"):
        quietly(tiny(tmp_path, epochs=1))
    (tmp_path / "thesis.tex").unlink()
    (tmp_path / ".config.json.writing").write_text('{"mod')  # killed before the config was there
    quietly(tiny(tmp_path, epochs=1))


def test_planning(finished, tmp_path):
    """A study writes the config for a process that it starts; what is there already is checked, and kept."""
    new = tiny(tmp_path / "new")
    Run.open(tmp_path / "new").plan(new)
    assert Run.open(tmp_path / "new").identity == Identity(new)  # data and processes are not known yet
    before = Run.open(finished).digest
    Run.open(finished).plan(tiny(finished, "sgs", machine={"threads": 2}))
    run = Run.open(finished)
    assert (run.config.machine.threads, run.digest, run.identity.processes) == (2, before, 1)
    with pytest.raises(OtherConfigError, match="--method: 'sgs' there, 'dbb' requested"):
        Run.open(finished).plan(tiny(finished, "dbb"))


# Extending: a run gets more epochs, and ends as if it had had them from the start.


@pytest.mark.parametrize("method", ["sgs", "dyrep"])
def test_a_finished_run_continues(method, tmp_path):
    def make(name, epochs):
        schedule = {"name": "step", "milestones": (1, 3)} if method == "sgs" else CONSTANT
        dyrep = {"interval": 1, "until": None}
        return tiny(tmp_path / name, method, epochs=epochs, schedule=schedule, dyrep=dyrep, data={"limit": 64})

    whole, _ = quietly(make("whole", 4))
    first, _ = quietly(make("run", 2))
    result, said = quietly(make("run", 4))
    assert "is extended from 2 to 4 epochs" in said
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert (result.epochs, result.value, result.test) == (4, whole.value, whole.test)
    kept = json.loads((tmp_path / "run/result.2-epochs.json").read_text())
    assert (kept["epochs"], kept["value"]) == (2, first.value)
    assert Run.open(tmp_path / "run").digest == Run.open(tmp_path / "whole").digest == result.identity
    assert "has already finished" in quietly(make("run", 4))[1]


def test_an_unfinished_run_continues_and_is_resumed(tmp_path):
    def make(name, epochs):
        return tiny(tmp_path / name, "sgs", epochs=epochs, schedule=CONSTANT)

    quietly(make("whole", 3))
    stop_at(7, make("run", 2))
    Run.open(tmp_path / "run").plan(make("run", 3))  # as a study does
    stop_at(12, make("run", 3))
    resume(tmp_path / "run", console=SILENT)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize(
    ("groups", "epochs", "message"),
    [
        ({}, 3, "a run of 2 epochs, which cannot be extended to --epochs 3: the cosine schedule"),
        (
            {"method": "lemma", "schedule": CONSTANT},
            3,
            "cannot be extended to --epochs 3: --method lemma",
        ),
        ({"schedule": CONSTANT}, 1, "--epochs: 2 there, 1 requested"),
    ],
)
def test_what_cannot_be_extended(groups, epochs, message, tmp_path):
    quietly(tiny(tmp_path, epochs=2, data={"limit": 64}, **groups))
    before = content(tmp_path)
    with pytest.raises(OtherConfigError, match=message):
        quietly(tiny(tmp_path, epochs=epochs, data={"limit": 64}, **groups))
    assert content(tmp_path) == before


def test_more_epochs_excuse_no_other_difference(interrupted):
    with pytest.raises(OtherConfigError, match=r"(?s)--epochs: 3 there.*--optimizer.lr: 0.05 there, 0.01 requested"):
        quietly(tiny(interrupted, "sgs", epochs=4, optimizer={"lr": 0.01}))


def test_a_moved_folder_is_the_same_run(interrupted, finished, tmp_path):
    shutil.move(interrupted, tmp_path / "moved")
    resume(tmp_path / "moved", console=SILENT)
    assert_same_run(tmp_path / "moved", finished)


def test_folders_of_different_trainings_differ():
    """A smoke test does not stand in the way of the real run."""
    assert TrainConfig().folder == Path("runs/vgg11-cifar100-sgs-seed0")
    changes = ({}, {"budget": {"epochs": 1}}, {"data": {"limit": 100}}, {"optimizer": {"lr": 0.5}}, {"seed": 1})
    names = [replace(tiny("x", **groups), out=None).folder.name for groups in changes]
    assert len(set(names)) == 5
    assert all(re.fullmatch(r"vgg11-w0.0625-fashion-mnist-mini-baseline-seed[01]-[0-9a-f]{6}", name) for name in names)
    # More epochs continue a run, where that is possible.
    constant = [replace(tiny("x", epochs=n, schedule=CONSTANT), out=None).folder for n in (1, 2)]
    assert constant[0] == constant[1]
