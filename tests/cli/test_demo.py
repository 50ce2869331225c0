"""`spatialgrad demo`."""

from dataclasses import replace

import pytest
import torch

from spatialgrad.cli import demo
from spatialgrad.data import load_dataset


@pytest.fixture
def few_images(monkeypatch):
    """The shipped data set, of which the demonstration gets the first images only."""
    dataset = load_dataset("fashion-mnist-mini")
    few = torch.arange(256)
    small = replace(dataset, train=dataset.train.select(few), test=dataset.test.select(few))
    monkeypatch.setattr(demo, "load_dataset", {dataset.name: small}.__getitem__)


@pytest.mark.parametrize(("seeds", "words"), [(2, "over 2 seeds"), (1, "single seed")])
def test_it_trains_reports_and_draws(seeds, words, few_images, command, tmp_path):
    code, said = command("demo", "--seeds", seeds, "--epochs", "2", "--batch-size", "64", "--out", tmp_path / "out")
    assert code == 0, said
    assert words in said
    assert "points" in said
    assert f"seed {seeds - 1}, scaled: " in said
    assert (tmp_path / "out" / "scalings.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("option", "value"), [("--epochs", "1"), ("--seeds", "0"), ("--batch-size", "0")])
def test_it_refuses_what_makes_no_sense(option, value, command):
    code, said = command("demo", option, value)
    assert code == 2
    assert f"{option} must be at least" in " ".join(said.split())
    assert "Traceback" not in said


def runs(*accuracies):
    return [demo.DemoRun(seed, accuracy, seconds=10.0) for seed, accuracy in enumerate(accuracies)]


@pytest.mark.parametrize(
    ("plain", "scaled", "words"),
    [
        ((0.70, 0.72, 0.71), (0.80, 0.82, 0.81), "Gain: +10.00 points over 3 seeds, equal in all pairs: no test"),
        # Differences 1, 2, 3: t = 2√3 with 2 degrees of freedom. Two standard errors would call this clear.
        (
            (0.70, 0.72, 0.71),
            (0.71, 0.74, 0.74),
            "+2.00 points over 3 seeds (95 % interval -0.48 to +4.48, p = 0.074): may",
        ),
        ((0.70, 0.72, 0.71), (0.73, 0.751, 0.742), "p < 0.001): significant; time"),
        ((0.74, 0.74, 0.74), (0.71, 0.709, 0.708), "Loss: -3.10 points over 3 seeds"),
        # Two pairs are too few, whatever p says.
        ((0.70, 0.70), (0.75, 0.7501), "p < 0.001): may be due to chance"),
        ((0.70,), (0.69,), "Loss with a single seed: -1.00 points, which says nothing"),
    ],
)
def test_the_verdict_claims_no_more_than_was_measured(plain, scaled, words):
    assert words in demo.verdict(runs(*plain), runs(*scaled))
    assert "time +0.0 %" in demo.verdict(runs(*plain), runs(*scaled))
