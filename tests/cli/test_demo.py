"""`spatialgrad demo`."""

import json
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from spatialgrad.cli import demo as module
from spatialgrad.cli.demo import LABELS, LEMMA, Cost, DemoConfig, start, train_lemma, training_bytes

WIDTH = 1 / 16
FEW = {"data.limit": 256, "data.test_limit": 100}


@pytest.fixture
def _few_images(monkeypatch):
    monkeypatch.setattr(module, "TRAINING", {**module.TRAINING, **FEW})


@pytest.mark.usefixtures("_few_images")
def test_it_ends_with_a_picture_a_verdict_and_commands(command, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "program", lambda: ".venv/bin/spatialgrad")
    out = tmp_path / "out"
    code, said = command("demo", "--epochs", "2", "--steps", "3", "--width", WIDTH, "--batch-size", "64", "--out", out)
    assert code == 0, said
    for method in LABELS.values():
        assert re.search(rf"{method}\s.*\d\.\d\d ×\s.*MiB", said), method
    plain = " ".join(said.split())
    assert re.search(r"difference between their kernels: \de-1[3-7]", plain)
    assert "Without scaling it is" in plain
    assert "CIFAR-100" in said
    assert re.search(r"epoch 2 of 2, about \d+ s left", said)
    assert (out / "scalings.png").read_bytes().startswith(b"\x89PNG")
    end = said[said.index("Picture: ") :]
    assert "scalings.png" in end
    assert "Verdict: scaled gradients learn exactly what branches learn" in " ".join(end.split())
    commands = re.findall(r"^(  \.venv/bin/spatialgrad (\w+).*)# ", end, re.MULTILINE)
    assert [name for _, name in commands] == ["compare", "train", "study"]
    assert len({len(line) for line, _ in commands}) == 1  # aligned


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--epochs", "1", "at least 2"),
        ("--steps", "0", "at least 1"),
        ("--steps", "100000", "at most"),
        ("--batch-size", "0", "at least 1"),
        ("--batch-size", "5001", "at most 5000"),
        ("--width", "0", "above 0"),
        ("--width", "nan", "above 0"),
    ],
)
def test_it_refuses_what_makes_no_sense(option, value, words, command):
    code, said = command("demo", option, value)
    assert code == 2
    assert f"{option} must be {words}" in " ".join(said.split())
    assert "Traceback" not in said


@pytest.mark.usefixtures("_few_images")
def test_the_lemma_holds_to_rounding_and_only_with_scaling():
    config = DemoConfig(width=WIDTH)
    results = {name: train_lemma(start(config.training(name, **LEMMA)), 6) for name in ("lemma", "lemma-unscaled")}
    scaled = results["lemma"]
    assert scaled["distance"] < 1e-11
    assert scaled["loss_branched"] == pytest.approx(scaled["loss_scaled"], rel=1e-9)
    assert scaled["loss_branched"] != scaled["first_loss"]
    assert results["lemma-unscaled"]["distance"] > 0.01


@pytest.mark.usefixtures("_few_images")
def test_scaling_adds_no_parameters_and_no_memory():
    costs = {name: Cost(start(DemoConfig(width=WIDTH).training(name))) for name in LABELS}
    plain = costs.pop("baseline")
    sgs = costs.pop("sgs")
    assert (sgs.parameters, sgs.memory_bytes) == (plain.parameters, plain.memory_bytes)
    assert all(cost.parameters > plain.parameters for cost in costs.values())
    assert all(cost.memory_bytes > plain.memory_bytes for cost in costs.values())


def linear_learner(*layers):
    """As much of a learner as a cost needs: 32 vectors with 100 numbers."""
    batch = torch.rand(32, 100), torch.randint(0, 10, (32,))
    task = SimpleNamespace(loss=lambda model, batch: (F.cross_entropy(model(batch[0]), batch[1]), {}))
    return SimpleNamespace(module=nn.Sequential(*layers), task=task, train_batches=lambda epoch: [batch])


def test_updates_count_with_a_fifth_of_their_time():
    learner = linear_learner(nn.Linear(100, 10))
    plain = Cost(learner, [1.0, 2.0, 4.0])
    scaled = Cost(learner, [1.0, 2.0, 4.0], [0.5, 0.5])
    assert scaled.ratio(plain) == pytest.approx(1.05)
    assert plain.ratio(plain) == 1


def test_memory_is_what_the_backward_pass_keeps():
    """A linear layer keeps its input; the loss keeps the log-probabilities, the labels and its weight."""
    learner = linear_learner(nn.Linear(100, 10, bias=False))
    deeper = linear_learner(nn.Linear(100, 100, bias=False), nn.ReLU(), nn.Linear(100, 10, bias=False))
    least = 3 * 1000 * 4 + 32 * 100 * 4 + 32 * 10 * 4
    counted = training_bytes(learner, learner.module)
    assert least <= counted <= least + 32 * 8 + 64
    added = training_bytes(deeper, deeper.module) - counted
    assert added == 3 * 10_000 * 4 + 32 * 100 * 4  # ReLU and the second layer share one map


def test_counting_memory_does_not_change_the_network():
    learner = linear_learner(nn.BatchNorm1d(100), nn.Linear(100, 10))
    before = {name: value.clone() for name, value in learner.module.state_dict().items()}
    training_bytes(learner, learner.module)
    assert all(torch.equal(value, before[name]) for name, value in learner.module.state_dict().items())


@pytest.mark.parametrize(("low", "high", "clear"), [(0.1, 2.0, True), (-1.0, 1.0, False), (-2.0, -0.1, True)])
def test_the_quoted_result_claims_no_more_than_its_interval(low, high, clear):
    result = json.loads(module.QUOTED.read_text()) | {"low": low, "high": high, "difference": (low + high) / 2}
    said = module.quoted_text(result)
    assert ("no clear difference" not in said) == clear
    assert result["command"] in said
    assert f"{result['seeds']} seeds" in said
