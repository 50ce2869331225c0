"""The figures that turn the paper's observations into numbers, against values worked out by hand."""

import json
import math

import pytest
import torch

from spatialgrad.report.figures.build import build_figures
from spatialgrad.report.figures.centre_share import observed, share_of_centre
from spatialgrad.report.figures.dependence import by_distance, over_distance
from spatialgrad.report.figures.kernel_magnitudes import magnitudes_of_run
from spatialgrad.report.figures.kernel_similarity import similarity
from spatialgrad.report.figures.layers import thirds
from spatialgrad.report.load import load_results
from spatialgrad.report.scalings_log import Scalings
from spatialgrad.train.checkpoint import save_checkpoint
from support.report import arm, record, write_run

LAYERS = [("stem", 7), *((f"layers.{index}", 3) for index in range(8))]


def focused(value):
    """A 3×3 matrix with mean 1 and this centre."""
    rest = (9 - value) / 8
    return ((rest,) * 3, (rest, value, rest), (rest,) * 3)


def study(folder, *figures):
    arms = [arm("base", "Baseline", {"Model": "M"}, (0,), reference=True)]
    arms.append(arm("sgs", "SGS", {"Model": "M"}, (0,), method="sgs"))
    write_run(folder / "runs/base/seed0", 0.5)
    write_run(folder / "runs/sgs/seed0", 0.5, epochs=6, layers=LAYERS)
    record(arms, seeds=(0,), figures=figures).write(folder)
    return load_results(folder)


def test_the_share_of_the_centre():
    assert share_of_centre(focused(1.0)) == pytest.approx(100 / 9)
    assert share_of_centre(focused(4.5)) == pytest.approx(50)
    # Of a large kernel, only the central 3×3 positions count.
    large = [[0.1] * 7 for _ in range(7)]
    for i in (2, 3, 4):
        for j in (2, 3, 4):
            large[i][j] = focused(4.5)[i - 2][j - 2]
    assert share_of_centre(tuple(map(tuple, large))) == pytest.approx(50)
    assert share_of_centre(((1.0, 2.0, 1.0),)) == pytest.approx(50)
    assert share_of_centre(((0.0,) * 3,) * 3) == 0


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
    assert words in observed(updates)


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
    path.write_text("".join(json.dumps({**line, "dependence": {"stem": "?"}}) + "\n" for line in lines))
    there = load_results(there.folder)
    (figure,) = build_figures(there, "f")
    assert "no data: all runs have finished without it" in figure.alt
    (run,) = there.shown[1].runs
    assert "scalings.jsonl has no matrix for stem" in run.problems
    assert run.scalings


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
        magnitudes = magnitudes_of_run(tmp_path / f"runs/{key}/seed0")
        pairs = [torch.tensor([last[layer], magnitudes[layer]]).flatten(1) for layer, _ in LAYERS]
        mean = sum(float(torch.corrcoef(pair)[0, 1]) for pair in pairs) / len(pairs)
        assert f"G of SGS and |W| of {name}: mean {mean:+.2f} over 9 layers".replace("-0.", "−0.") in figure.alt
    assert [(key.label, key.shape) for key in figure.legend] == [("|W| of SGS", "line"), ("|W| of Baseline", "dashed")]
