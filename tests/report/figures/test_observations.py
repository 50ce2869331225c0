"""The figures that turn the paper's observations into numbers, against values worked out by hand."""

import json
import math

import pytest
import torch

from spatialgrad.report.figures import build_figures
from spatialgrad.report.figures.kernels import magnitudes_of_run, similarity
from spatialgrad.report.figures.scalings import by_distance, observe, over_distance, thirds
from spatialgrad.report.load import load_results
from spatialgrad.report.results import Scalings
from spatialgrad.train.checkpoint import save_checkpoint
from spatialgrad.train.run import Run
from support.report import arm, record, write_lines, write_run

LAYERS = [("stem", 7), *((f"layers.{index}", 3) for index in range(8))]


def focused(value):
    """A 3×3 matrix with mean 1 and this centre."""
    rest = (9 - value) / 8
    return ((rest,) * 3, (rest, value, rest), (rest,) * 3)


def study(folder, *figures):
    arms = [arm("base", "Baseline", {"Model": "M"}, (0,), reference=True)]
    arms.append(arm("sgs", "SGS", {"Model": "M"}, (0,), method="sgs", epochs=6))
    write_run(folder / "runs/base/seed0", 0.5)
    write_run(folder / "runs/sgs/seed0", 0.5, epochs=6, layers=LAYERS, method="sgs")
    record(arms, seeds=(0,), figures=figures).write(folder)
    return load_results(folder)


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [
        (
            (1, 2, 3),
            (1.5, 2.5, 3.5),
            "more centre-focused (rank correlation of depth and share +1.00); mean",
        ),
        ((1, 2, 3), (1.5, 2.5, 3.5), "share 22.2 % at the first and 27.8 % at the last update: more centre"),
        ((3, 2, 1), (2.5, 1.5, 1), "less centre-focused (rank correlation of depth and share −1.00)"),
        ((3, 2, 1), (2.5, 1.5, 1), "18.5 % at the last update: smoother"),
        ((1, 2), (1, 2), "too few layers to tell whether depth matters"),
        ((1, 2), (1, 2), "16.7 % at the last update: no change"),
    ],
)
def test_observations(first, last, words):
    updates = [
        Scalings(epoch=epoch, layers={str(place): focused(value) for place, value in enumerate(values)})
        for epoch, values in enumerate((first, last))
    ]
    assert words in observe(updates)


def test_the_centre_share_of_a_study(tmp_path):
    (figure,) = build_figures(study(tmp_path, "centre-share"), "f")
    # Made up to be more centred with depth and time.
    assert "SGS: deeper layers are more centre-focused (rank correlation of depth and share +1.00)" in figure.alt
    assert "at the last update: more centre-focused" in figure.alt
    assert figure.alt.split("epochs. ")[1].rstrip(".") in figure.caption
    assert "Baseline" not in figure.alt  # it has no scalings


def test_dependence_by_distance():
    S = ((0.1, 0.2, 0.3), (0.4, 1.0, 0.4), (0.3, 0.2, 0.1))
    found = by_distance(S)
    assert list(found) == [0, 1, math.sqrt(2)]
    assert list(found.values()) == pytest.approx([1.0, 0.3, 0.2])
    curves = over_distance({"a": S, "b": focused(1.0), "c": ((0.5,) * 5,) * 5})
    assert curves["early layers"] == pytest.approx(found)
    assert curves["middle layers"] == pytest.approx({0: 1, 1: 1, math.sqrt(2): 1})
    assert max(curves["late layers"]) == pytest.approx(math.sqrt(8))


@pytest.mark.parametrize("number", range(1, 12))
def test_thirds_hold_every_layer_once(number):
    parts = thirds(range(number))
    assert [layer for part in parts.values() for layer in part] == list(range(number))
    assert len(parts) == min(3, number)
    assert max(map(len, parts.values())) - min(map(len, parts.values())) <= 1


def test_dependence_of_a_study(tmp_path):
    (figure,) = build_figures(study(tmp_path, "dependence"), "f")
    last = json.loads((tmp_path / "runs/sgs/seed0/scalings.jsonl").read_text().splitlines()[-1])["dependence"]
    mean = sum(last[f"layers.{index}"][1][0] for index in (5, 6, 7)) / 3
    assert f"SGS, late layers: {mean:.2f} at 1.00" in figure.alt
    assert "at 4.24" in figure.alt  # the corner of the 7×7 stem
    assert figure.svg.count("<svg") == 2  # curves and squares


def test_dependence_needs_a_measurement(tmp_path):
    there = study(tmp_path, "dependence")
    path = tmp_path / "runs/sgs/seed0/scalings.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    write_lines(path, [{**line, "dependence": {}} for line in lines])
    (figure,) = build_figures(load_results(there.folder), "f")
    assert "no data: all runs have finished without it" in figure.alt


def test_similarity_by_hand():
    G = {"a": focused(2.0), "b": focused(2.0), "c": focused(1.0), "d": focused(2.0), "e": focused(2.0)}
    W = {"a": focused(1.1), "b": focused(0.9), "c": focused(2.0), "d": ((1.0,) * 5,) * 5}
    assert similarity(G, W) == pytest.approx({1: 1.0, 2: -1.0})  # c is constant, d has another size, e is missing


def test_similarity_of_a_study(tmp_path):
    there = study(tmp_path, "kernel-similarity")
    torch.manual_seed(0)
    weights = {}
    for key in ("base", "sgs"):
        weights[key] = {f"{name}.weight": torch.randn(4, 4, size, size) for name, size in LAYERS}
        save_checkpoint(tmp_path / f"runs/{key}/seed0", {"model": weights[key], "step": 0, "epoch": 0, "batch": 0})
    last = json.loads((tmp_path / "runs/sgs/seed0/scalings.jsonl").read_text().splitlines()[-1])["scalings"]
    (figure,) = build_figures(load_results(there.folder), "f")
    for key, name in (("sgs", "SGS"), ("base", "Baseline")):
        magnitudes = magnitudes_of_run(Run.open(tmp_path / f"runs/{key}/seed0"))
        pairs = [torch.tensor([last[layer], magnitudes[layer]]).flatten(1) for layer, _ in LAYERS]
        mean = sum(float(torch.corrcoef(pair)[0, 1]) for pair in pairs) / len(pairs)
        assert f"G of SGS and |W| of {name}: mean {mean:+.2f} over 9 layers".replace("-0.", "−0.") in figure.alt
    assert [(key.label, key.shape) for key in figure.legend] == [("|W| of SGS", "line"), ("|W| of Baseline", "dashed")]
