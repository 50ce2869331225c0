"""Runs with live updates: their schedule, their log, and how they resume in the middle of an update."""

import pytest
import torch

from spatialgrad.train import InterruptedTraining, resume
from spatialgrad.train.checkpoint import CHECKPOINT, read_checkpoint
from spatialgrad.train.jsonfiles import read_lines
from support.training import (
    SILENT,
    Process,
    assert_resumes,
    assert_same_run,
    at_step,
    codes,
    kill,
    quietly,
    request_stop,
    start_ranks,
    tiny,
    train_quietly,
)

LIVE = {"scaling": {"live": True}}


def train_and_die(config):
    """Killed while the first update, over the steps 5 to 8 (counted from 0), counts."""
    with at_step(8, kill):
        return train_quietly(config)


def test_epochs_become_steps(tmp_path):
    quietly(tiny(tmp_path, "sgs", **LIVE))
    lines = read_lines(tmp_path / "scalings.jsonl")
    # Updates begin after 5 and 10 steps, and each takes 4 steps.
    assert [(line["update"], line["step"], line["epoch"]) for line in lines] == [(1, 9, 1), (2, 14, 2)]
    for line in lines:
        assert set(line["dependence"]) == set(line["scalings"])
        for G in line["scalings"].values():
            torch.testing.assert_close(torch.tensor(G).mean(), torch.tensor(1.0))


@pytest.mark.parametrize("method", ["sgs", pytest.param("sgs-autocorrelation", marks=pytest.mark.slow)])
def test_resuming_before_and_after_an_update(method, tmp_path):
    assert_resumes(lambda out: tiny(out, method, **LIVE), tmp_path, 5, 9, 15)


def test_a_signal_within_an_update_is_answered_at_its_end(tmp_path):
    quietly(tiny(tmp_path / "whole", "sgs", **LIVE))
    config = tiny(tmp_path / "run", "sgs", **LIVE)
    with at_step(7, request_stop), pytest.raises(InterruptedTraining):
        quietly(config)
    assert read_checkpoint(config.folder / CHECKPOINT)["step"] == 9
    resume(config.folder, console=SILENT)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_killed_in_the_middle_of_an_update(tmp_path):
    often = {"budget": {"checkpoint_steps": 1}, **LIVE}
    quietly(tiny(tmp_path / "whole", "sgs", **often))
    assert Process(tiny(tmp_path / "run", "sgs", **often), function=train_and_die).wait()[0] != 0
    resume(tmp_path / "run", console=SILENT)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_two_processes(strategy, tmp_path):
    config = tiny(tmp_path, "sgs", data={"limit": 149}, machine={"strategy": strategy}, **LIVE)
    assert codes(start_ranks(config)) == [0, 0]
    assert [line["step"] for line in read_lines(tmp_path / "scalings.jsonl")] == [9, 14]
