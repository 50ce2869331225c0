"""The Lemma on a network: in double precision both networks learn the same, and without scaling they do not."""

import pytest
import torch

from spatialgrad.train import DivergedError, Run, load_model
from spatialgrad.train.jsonfiles import read_lines
from spatialgrad.train.methods.lemma import kernel_distance
from spatialgrad.train.tasks.classification import Classification
from support.training import quietly, tiny

DOUBLE = {"machine": {"precision": "64-true"}, "optimizer": {"lr": 0.01}}


def run(folder, method="lemma", **groups):
    return quietly(tiny(folder, method, **{"epochs": 2, **DOUBLE, **groups}))


def test_both_learn_the_same(tmp_path):
    result, said = run(tmp_path)
    assert result.metric == "distance"
    assert result.value == result.best == result.test["distance"] < 1e-12
    assert result == Run.open(tmp_path).result
    assert f"distance {result.value:.1e} after 10 steps on Fashion-MNIST" in said
    lines = read_lines(tmp_path / "distances.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 11))
    assert [line["epoch"] for line in lines] == [0] * 5 + [1] * 5
    assert lines[-1]["distance"] == result.value
    assert all(line["loss_branched"] == pytest.approx(line["loss_scaled"], rel=1e-10) for line in lines)
    assert lines[-1]["loss_scaled"] != lines[0]["loss_scaled"]
    # All else is as for any other training.
    assert read_lines(tmp_path / "metrics.jsonl")[-1]["test_accuracy"] == result.test["accuracy"]
    assert isinstance(load_model(tmp_path), torch.nn.Module)


def test_without_scaling_they_do_not(tmp_path):
    assert run(tmp_path, "lemma-unscaled")[0].value > 1e-2


def test_single_precision(tmp_path):
    # With channels last, ties of pooling in flat areas may fall differently, which is more than rounding.
    run(tmp_path, epochs=1, machine={"precision": "32-true", "channels_last": False})
    assert 1e-9 < read_lines(tmp_path / "distances.jsonl")[0]["distance"] < 1e-3


def test_long_trainings_have_few_entries(tmp_path, monkeypatch):
    monkeypatch.setattr("spatialgrad.train.methods.lemma.NUM_ENTRIES", 3)
    run(tmp_path)
    assert [line["step"] for line in read_lines(tmp_path / "distances.jsonl")] == [1, 3, 6, 9, 10]


def test_a_branched_network_that_diverges(tmp_path, monkeypatch):
    """Its loss is the second one of every step."""
    honest, calls = Classification.loss, []

    def spoilt(self, model, batch):
        calls.append(model)
        loss, sums = honest(self, model, batch)
        return (loss * float("inf") if len(calls) == 4 else loss), sums

    monkeypatch.setattr(Classification, "loss", spoilt)
    with pytest.raises(DivergedError, match="the loss of the branched network became non-finite at step 2"):
        run(tmp_path)


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
