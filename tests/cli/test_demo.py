"""`spatialgrad demo`."""

import json
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from spatialgrad.cli import demo_run
from spatialgrad.cli.demo_lemma import show_lemma
from spatialgrad.cli.demo_price import METHODS, Price, Training, measure_prices, training_bytes
from spatialgrad.data import load_dataset

WIDTH = 1 / 16


@pytest.fixture(scope="module")
def images():
    """A part of the shipped data set."""
    dataset = load_dataset("fashion-mnist-mini").with_image_size(32)
    few = torch.arange(256)
    return replace(dataset, train=dataset.train.select(few), test=dataset.test.select(few))


def test_it_shows_everything_and_draws(images, command, tmp_path, monkeypatch):
    monkeypatch.setattr(demo_run, "load_dataset", lambda name: load_dataset(name) and images)
    monkeypatch.setattr(type(images), "with_image_size", lambda self, size: self)
    out = tmp_path / "out"
    code, said = command("demo", "--epochs", "2", "--steps", "3", "--width", WIDTH, "--batch-size", "64", "--out", out)
    assert code == 0, said
    for method in METHODS:
        assert re.search(rf"{method}\s.* s\s.*MiB", said), method
    assert re.search(r"difference between their kernels: \de-1[3-7]", said)
    assert "CIFAR-100" in said
    assert "spatialgrad study run cifar --scale desk" in said
    assert (out / "scalings.png").read_bytes().startswith(b"\x89PNG")


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


def test_the_lemma_holds_to_rounding_and_only_with_scaling(images):
    result = show_lemma(images, demo_run.MODEL, WIDTH, steps=6)
    assert result.distance < 1e-11
    assert result.branched_loss == pytest.approx(result.scaled_loss, rel=1e-9)
    assert result.unscaled_distance > 0.01
    assert result.branched_loss != result.first_loss


def test_each_method_trains_the_same_number_of_epochs_and_scaling_adds_no_parameters(images):
    trainings = measure_prices(images, demo_run.MODEL, WIDTH, batch_size=64, rounds=2)
    prices = {name: training.price for name, training in trainings.items()}
    assert {len(price.epoch_seconds) for price in prices.values()} == {2}
    plain = prices["plain"]
    assert prices["SGS"].parameters == plain.parameters
    assert prices["SGS"].memory_bytes == plain.memory_bytes
    assert len(prices["SGS"].update_seconds) == len(trainings["SGS"].scalings) == 1
    for name in ("ACB", "RepVGG", "DBB"):
        assert prices[name].parameters > plain.parameters
        assert prices[name].memory_bytes > plain.memory_bytes
        assert not prices[name].update_seconds


def test_updates_count_with_a_fifth_of_their_time():
    plain = Price(method="plain", parameters=1, memory_bytes=1, epoch_seconds=[1.0, 2.0, 4.0])
    scaled = Price(method="SGS", parameters=1, memory_bytes=1, epoch_seconds=[1.0, 2.0, 4.0], update_seconds=[0.5, 0.5])
    assert scaled.seconds == pytest.approx(2.1)
    assert scaled.ratio(plain) == pytest.approx(1.05)
    assert plain.ratio(plain) == 1


def test_memory_is_what_the_backward_pass_keeps():
    """A linear layer keeps its input; the loss keeps the log-probabilities, the labels and its weight."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 10, bias=False))
    images, labels = torch.rand(32, 100), torch.randint(0, 10, (32,))
    least = 3 * 1000 * 4 + 32 * 100 * 4 + 32 * 10 * 4
    assert least <= training_bytes(model, images, labels) <= least + 32 * 8 + 64
    deeper = nn.Sequential(nn.Linear(100, 100, bias=False), nn.ReLU(), nn.Linear(100, 10, bias=False))
    added = training_bytes(deeper, images, labels) - training_bytes(model, images, labels)
    assert added == 3 * 10_000 * 4 + 32 * 100 * 4  # ReLU and the second layer share one map


def test_counting_memory_does_not_change_the_network(images):
    first, second = (Training("plain", images, demo_run.MODEL, WIDTH, 64) for _ in range(2))
    x, y = images.train.images[:8] / 255, images.train.labels[:8]
    training_bytes(second.model, x, y)
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name


@pytest.mark.parametrize(("low", "high", "clear"), [(0.1, 2.0, True), (-1.0, 1.0, False), (-2.0, -0.1, True)])
def test_the_quoted_result_claims_no_more_than_its_interval(low, high, clear):
    kept = json.loads(demo_run.KEPT.read_text()) | {"low": low, "high": high, "difference": (low + high) / 2}
    said = demo_run.kept_text(kept)
    assert ("no clear difference" not in said) == clear
    assert kept["command"] in said
    assert f"{kept['seeds']} seeds" in said
