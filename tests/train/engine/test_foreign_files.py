"""Files of a run that are damaged, gone, or those of another run: named, and nothing is lost."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from spatialgrad.train.runs.checkpoint import check_identity, check_position

from spatialgrad.train import (
    CheckpointError,
    DamagedFileError,
    FolderInUseError,
    Run,
    load_model,
    resume,
)
from spatialgrad.train.checkpoint import read_checkpoint
from spatialgrad.train.jsonfiles import read_lines
from support.training import SILENT, Process, assert_same_run, at_step, logs, quietly, stop_at, tiny


def content(folder):
    """Everything but the lock, which names the process."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "run.lock"}


def change(path, **values):
    """Rewrite a checkpoint with other values; None removes one."""
    state = {**read_checkpoint(path), **values}
    torch.save({name: value for name, value in state.items() if value is not None}, path)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a run that was stopped in the second epoch; to be copied."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    stop_at(7, tiny(folder, "sgs"))
    return folder


@pytest.fixture
def run(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "run")
    return tmp_path / "run"


# A checkpoint of another run.


@pytest.mark.parametrize(
    ("method", "groups", "difference"),
    [
        ("sgs", {"seed": 1}, "--seed: 1 in the checkpoint, 0 in the config"),
        ("baseline", {}, "--method: 'baseline' in the checkpoint, 'sgs' in the config"),
        ("sgs", {"model": {"width": 1 / 8}}, "--model.width: 0.125 in the checkpoint"),
        ("sgs", {"data": {"limit": 151}}, "--data.limit: 151 in the checkpoint, 150 in the config"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(method, groups, difference, run, tmp_path):
    stop_at(7, tiny(tmp_path / "other", method, **groups))
    shutil.copy(tmp_path / "other" / "checkpoint.pt", run / "checkpoint.pt")
    before = content(run)
    with pytest.raises(CheckpointError, match="belongs to another run") as caught:
        resume(run, console=SILENT)
    assert difference in str(caught.value)
    assert content(run) == before
    with pytest.raises(CheckpointError, match="belongs to another run"):
        load_model(run)


def test_a_checkpoint_that_does_not_fit_leaves_the_logs(run):
    """Its config is that of the run, but its weights are not."""
    state = read_checkpoint(run / "checkpoint.pt")
    change(run / "checkpoint.pt", model={name: value[:1] for name, value in state["model"].items() if value.ndim})
    before = content(run)
    with pytest.raises(CheckpointError, match="does not fit this run"):
        resume(run, console=SILENT)
    assert content(run) == before
    with pytest.raises(CheckpointError, match="does not fit the network"):
        load_model(run)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step": 8}, "inconsistent: step 8 is not batch 2 of epoch 1 in a training of 3 epochs with 5 steps each"),
        ({"epoch": 2}, "inconsistent"),
        ({"epoch": 3, "batch": 0, "step": 14}, "inconsistent"),
        ({"epoch": 4, "batch": 0, "step": 20}, "inconsistent"),
        ({"epoch": 0, "batch": 7}, "inconsistent"),
        ({"epoch": -1, "batch": 12}, "inconsistent"),
        ({"step": 7.0}, "inconsistent"),
        ({"format": 2}, r"has format 2; this version reads format 1"),
        ({"format": None}, r"has format None"),
        ({"config": None}, "does not record its config"),
        ({"config": {"modle": 1}}, "invalid config"),
        ({"network": None}, "has no network"),
        ({"optimizer": None}, "has no optimizer"),
        ({"lines": {"metrics.jsonl": "many"}}, "has no lines"),
        ({"sums": []}, "does not fit this run"),
        ({"method": {}}, "does not fit this run"),
    ],
    ids=str,
)
def test_a_checkpoint_that_cannot_be(values, message, run):
    change(run / "checkpoint.pt", **values)
    before = content(run)
    with pytest.raises(CheckpointError, match=message) as caught:
        resume(run, console=SILENT)
    assert caught.value.exit_code == 65
    assert content(run) == before


@pytest.mark.parametrize(("epoch", "batch"), [(0, 0), (0, 5), (1, 0), (2, 5), (3, 0)])
def test_every_position_of_a_run_is_accepted(epoch, batch, run):
    """The end of an epoch is one, too: before it is evaluated, and after it."""
    state = {**read_checkpoint(run / "checkpoint.pt"), "epoch": epoch, "batch": batch, "step": 5 * epoch + batch}
    check_position(state, tiny(run, "sgs"), 5)


def test_a_moved_backbone_is_the_same_run(tmp_path):
    from spatialgrad.train.config import to_dict
    from spatialgrad.train.recipes import segmentation_pocket

    def state(backbone):
        return {"config": to_dict(segmentation_pocket(backbone=backbone))}

    config = segmentation_pocket(backbone=tmp_path / "here")
    check_identity(state(tmp_path / "there"), config)
    with pytest.raises(CheckpointError, match=r"--model\.backbone: None in the checkpoint"):
        check_identity(state(None), config)


def test_a_run_on_another_machine_is_the_same_run(run, tmp_path):
    config = tiny(run, "sgs", budget={"checkpoint_steps": 1}, machine={"threads": 2}, tensorboard=True)
    check_identity(read_checkpoint(run / "checkpoint.pt"), replace(config, out=tmp_path / "elsewhere"))


# Two trainings in one folder.


def test_a_second_training_in_the_same_process(tmp_path):
    """A notebook cell that is run twice: the second is refused, and the first keeps the folder to itself."""
    found = []

    def again(trainer):
        if found:
            return
        with pytest.raises(FolderInUseError) as caught:
            quietly(tiny(tmp_path / "run"))
        found.extend([str(caught.value), Process("resume", tmp_path / "run").wait()[0]])

    with at_step(7, again):
        quietly(tiny(tmp_path / "run"))
    assert "in use by this process" in found[0]
    assert found[1] == 75
    assert len(read_lines(tmp_path / "run" / "metrics.jsonl")) == 3
    quietly(tiny(tmp_path / "whole"))
    assert_same_run(tmp_path / "run", tmp_path / "whole")


# Damaged and missing files.


DAMAGE = {
    "empty": b"",
    "cut": b'{"model": "vg',
    "list": b"[1]",
    "incomplete": b'{"model": "vgg11"}',
    "binary": b"\xff\xfe\0",
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("damage", [*DAMAGE, "text", "number"])
def test_a_damaged_result(damage, tmp_path):
    result, _ = quietly(tiny(tmp_path, epochs=1))
    path = tmp_path / "result.json"
    values = json.loads(path.read_text())
    changed = {"text": {**values, "value": "many"}, "number": {**values, "test": 1}}
    path.write_bytes(DAMAGE[damage] if damage in DAMAGE else json.dumps(changed[damage]).encode())
    with pytest.raises(DamagedFileError, match=r"result\.json is damaged"):
        Run.open(tmp_path).result
    with pytest.raises(DamagedFileError, match=r"result\.json is damaged .* Remove it"):
        quietly(tiny(tmp_path, epochs=1))
    path.unlink()
    again, _ = quietly(tiny(tmp_path, epochs=1))
    assert (again.value, again.test) == (result.value, result.test)


def test_a_result_of_before_there_was_a_reason_for_inaction(tmp_path):
    result, _ = quietly(tiny(tmp_path, "sgs", epochs=1))
    values = json.loads((tmp_path / "result.json").read_text())
    assert values.pop("inaction")
    (tmp_path / "result.json").write_text(json.dumps(values))
    assert Run.open(tmp_path).result == replace(result, inaction=None)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_environment(damage, run):
    (run / "environment.json").write_bytes(DAMAGE[damage])
    _, said = quietly(tiny(run, "sgs"))
    if damage != "incomplete":
        assert "environment.json is damaged" in said
        assert (run / "environment.damaged.json").read_bytes() == DAMAGE[damage]
        assert "versions" in json.loads((run / "environment.json").read_text())


@pytest.mark.parametrize("line", [b"{", b"3", b"\xff"])
def test_a_damaged_line_of_the_metrics(line, run):
    """Noticed when the run is resumed, not when it ends."""
    path = run / "metrics.jsonl"
    size = path.stat().st_size
    path.write_bytes(line.ljust(size - 1) + b"\n")
    before = content(run)
    with pytest.raises(DamagedFileError, match=r"line 1 of .*metrics\.jsonl is damaged .* Restore it"):
        resume(run, console=SILENT)
    assert content(run) == before


def test_without_checkpoints_the_logs_are_kept(run, tmp_path):
    before = logs(run)
    (run / "checkpoint.pt").unlink()
    _, said = quietly(tiny(run, "sgs"))
    assert "no checkpoint: starting over" in said
    assert "metrics.old-1.jsonl and scalings.old-1.jsonl" in said
    for name, text in before.items():
        assert (run / name.replace(".jsonl", ".old-1.jsonl")).read_bytes() == text
    quietly(tiny(tmp_path / "whole", "sgs"))
    assert_same_run(run, tmp_path / "whole")
