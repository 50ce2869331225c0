"""A run gets more epochs, and ends as if it had had them from the start: bit for bit. Or it says why it cannot."""

import json

import pytest

from spatialgrad.train import CheckpointError, OtherConfigError, Run, resume
from spatialgrad.train.jsonfiles import read_lines
from support.training import SILENT, assert_same_run, quietly, stop_at, tiny

CONSTANT = {"name": "constant", "warmup_epochs": 0.5}
STEP = {"name": "step", "milestones": (1, 3)}


@pytest.mark.parametrize(
    ("method", "schedule"), [("sgs", CONSTANT), ("baseline", STEP), ("dyrep", CONSTANT), ("dbb", CONSTANT)]
)
def test_a_finished_run_continues(method, schedule, tmp_path):
    def make(name, epochs):
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
    assert Run.open(tmp_path / "run").config.budget.epochs == 4
    assert "has already finished" in quietly(make("run", 4))[1]


def test_an_unfinished_run_continues_and_is_resumed(tmp_path):
    def make(name, epochs):
        return tiny(tmp_path / name, "sgs", epochs=epochs, schedule=CONSTANT)

    quietly(make("whole", 3))
    stop_at(7, make("run", 2))
    stop_at(12, make("run", 3))
    resume(tmp_path / "run", console=SILENT)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize(
    ("method", "groups", "epochs", "message"),
    [
        ("baseline", {}, 3, "a run of 2 epochs, which cannot be extended to --epochs 3: the cosine schedule"),
        ("baseline", {"schedule": {"name": "poly"}}, 3, "cannot be extended to --epochs 3: the poly schedule"),
        ("lemma", {"schedule": CONSTANT}, 3, "cannot be extended to --epochs 3: --method lemma logs"),
        ("baseline", {"schedule": CONSTANT}, 1, "--epochs: 2 there, 1 requested"),
    ],
)
def test_a_clear_refusal_that_changes_nothing(method, groups, epochs, message, tmp_path):
    quietly(tiny(tmp_path, method, epochs=2, data={"limit": 64}, **groups))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file() and path.suffix != ".lock"}
    with pytest.raises(OtherConfigError, match=message):
        quietly(tiny(tmp_path, method, epochs=epochs, data={"limit": 64}, **groups))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name in before} == before
    assert not list(tmp_path.glob("result.*-epochs.json"))


def test_more_epochs_excuse_no_other_difference(tmp_path):
    quietly(tiny(tmp_path, epochs=1, schedule=CONSTANT, data={"limit": 64}))
    with pytest.raises(OtherConfigError, match=r"(?s)--optimizer.lr: 0.05 there, 0.01 requested.*--epochs: 1 there"):
        quietly(tiny(tmp_path, epochs=2, schedule=CONSTANT, data={"limit": 64}, optimizer={"lr": 0.01}))


@pytest.mark.parametrize("schedule", [{"name": "cosine"}, CONSTANT], ids=["cosine", "constant"])
def test_a_checkpoint_of_fewer_epochs_fits_only_what_can_be_extended(schedule, tmp_path):
    """As if a config had been edited by hand, or a checkpoint copied."""
    config = tiny(tmp_path, epochs=1, schedule=schedule, data={"limit": 64})
    quietly(config)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    values["budget"]["epochs"] = 2
    path.write_text(json.dumps(values))
    (tmp_path / "result.json").unlink()
    if schedule == CONSTANT:
        resume(tmp_path, console=SILENT)
        assert len(read_lines(tmp_path / "metrics.jsonl")) == 2
    else:
        with pytest.raises(CheckpointError, match="--epochs: 1 in the checkpoint, 2 in the config"):
            resume(tmp_path, console=SILENT)
