"""The Lemma on a network: in double precision both learn the same, and nothing else would."""

import json
import signal

import pytest
import torch

from spatialgrad.studies.run.side_by_side import kernel_distance, train_side_by_side
from spatialgrad.studies.run.status import run_status
from spatialgrad.train import ConfigError, InterruptedTraining, read_lines
from spatialgrad.train.engine.signals import Stop
from support.training import SILENT, tiny

DOUBLE = {"machine": {"precision": "64-true", "accelerator": "cpu", "threads": 1}, "optimizer": {"lr": 0.01}}


def run(folder, method="sgs-static", **groups):
    return train_side_by_side(tiny(folder, method, **{"epochs": 2, **DOUBLE, **groups}), console=SILENT)


def test_both_learn_the_same(tmp_path):
    result = run(tmp_path / "scaled")
    assert result["value"] == result["distance"] < 1e-12
    assert result["steps"] == 10
    lines = read_lines(tmp_path / "scaled" / "distances.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 11))
    assert all(line["loss_branched"] == pytest.approx(line["loss_scaled"], rel=1e-10) for line in lines)
    assert lines[-1]["loss_scaled"] != lines[0]["loss_scaled"]
    assert run_status(tmp_path / "scaled").state == "finished"
    assert json.loads((tmp_path / "scaled" / "result.json").read_text()) == result
    # The control: without scaling they do not.
    assert run(tmp_path / "plain", "baseline")["value"] > 1e-2


def test_single_precision(tmp_path):
    result = run(tmp_path, epochs=1, machine={"precision": "32-true"})
    lines = read_lines(tmp_path / "distances.jsonl")
    assert 1e-9 < lines[0]["distance"] < 1e-3
    assert result["precision"] == "32-true"


def test_stopped_and_resumed(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(Stop, "signal", property(lambda self: self.asked(), lambda self, value: None), raising=False)
        asked = iter([0] * 6)
        patch.setattr(Stop, "asked", lambda self: next(asked, signal.SIGTERM), raising=False)
        with pytest.raises(InterruptedTraining, match="after step 7 of 10, and saved"):
            run(tmp_path / "run")
    with open(tmp_path / "run" / "distances.jsonl", "ab") as file:
        file.write(b'{"step": 8, "dist')
    resumed = run(tmp_path / "run")
    assert {**resumed, "seconds": 0} == {**whole, "seconds": 0}
    assert (tmp_path / "run/distances.jsonl").read_bytes() == (tmp_path / "whole/distances.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"optimizer": {"name": "adam"}}, "'adam' is not linear"),
        ({"machine": {"precision": "bf16-mixed"}}, "choose from 32-true, 64-true"),
    ],
)
def test_what_the_lemma_does_not_cover(groups, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        run(tmp_path / "run", **groups)
    assert not (tmp_path / "run").exists()


def test_distance():
    first, second = torch.nn.Conv2d(1, 1, 3), torch.nn.Conv2d(1, 1, 3)
    second.load_state_dict(first.state_dict())
    networks = [torch.nn.Sequential(conv) for conv in (first, second)]
    assert kernel_distance(*networks) == 0
    with torch.no_grad():
        second.weight.fill_(0.5)
        first.weight.fill_(0.5)
        first.weight[0, 0, 1, 1] = 0.25
    assert kernel_distance(*networks) == 0.5
