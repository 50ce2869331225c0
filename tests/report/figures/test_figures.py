"""Figures on their own: what is drawn, in which colours, and what is said about it."""

import json
import re
from xml.etree import ElementTree

import pytest

from spatialgrad.report.figures.base import SERIES, draw, plain
from spatialgrad.report.figures.build import FIGURES, build_figures
from spatialgrad.report.figures.heatmap import HeatRow, diverging, heat_rows, readable_on, sequential
from spatialgrad.report.load import load_results
from support.report import arm, record, write_run


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_values_can_be_read_on_every_colour():
    colours = [diverging(value / 100, 4.0) for value in range(500)] + [sequential(i / 200) for i in range(201)]
    assert min(contrast(colour, readable_on(colour)) for colour in colours) >= 4.5


def test_the_colour_of_one_is_the_neutral_one_and_both_sides_differ():
    assert diverging(1.0, 3.0) == "#f7f7f7"
    assert diverging(0.0, 3.0) == "#2166ac"
    assert diverging(3.0, 3.0) == diverging(9.0, 3.0) == "#b2182b"
    red, _, blue = (int(diverging(0.5, 3.0)[i : i + 2], 16) for i in (1, 3, 5))
    assert blue > red


def test_a_drawing_has_its_own_ids_and_the_colours_of_the_page():
    def paint(axes):
        axes[0].plot([0, 1], [2, 3], color=SERIES[1])
        axes[0].set_title('id="x" url(#y) <b> & $\\frac{')

    first, second = (draw(prefix, (2, 2), (1, 1), paint) for prefix in ("one", "two"))
    ids = [{e.get("id") for e in ElementTree.fromstring(svg).iter() if e.get("id")} for svg in (first, second)]
    assert ids[0]
    assert not ids[0] & ids[1]
    references = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', first)) - {"y"}
    assert references
    assert references <= ids[0]
    assert "var(--series-1)" in first
    assert "currentColor" in first
    assert not re.search("#(?:000000|010203)|DejaVu|<metadata", first)
    texts = [element.text for element in ElementTree.fromstring(first).iter("{http://www.w3.org/2000/svg}text")]
    assert 'id="x" url(#y) <b> & $\\frac{' in texts


def test_texts_of_drawings():
    assert plain("a\nb\x00c\td") == "a b c d"
    assert plain("x" * 100, 10) == "x" * 9 + "…"
    ElementTree.fromstring(
        heat_rows([HeatRow(title="\x01<&", matrices=[((1.0,),)], largest=2.0)], ["\ufffe\ud800<"])[0]
    )


def test_values_of_large_kernels_are_left_to_the_explorer():
    small, _ = heat_rows([HeatRow(title="r", matrices=[((1.25,) * 3,) * 3], largest=2.0)], ["c"])
    large, _ = heat_rows([HeatRow(title="r", matrices=[((1.25,) * 7,) * 7], largest=2.0)], ["c"])
    missing, _ = heat_rows([HeatRow(title="r", matrices=[None], largest=2.0)], ["c"])
    assert small.count("1.25") == 9
    assert "1.25" not in large
    assert large.count("<rect") == 50
    assert ">–<" in missing


@pytest.fixture
def equivalence(tmp_path):
    arms = [arm(key, key, {"Model": "VGG-11"}, (0,), note=key) for key in ("float64", "float32")]
    for each, size in zip(arms, (1e-15, 1e-6), strict=True):
        folder = tmp_path / each.runs[0].folder
        folder.mkdir(parents=True)
        lines = [
            {"step": step, "distance": size * step, "loss_branched": 2.0, "loss_scaled": 2.0 + size * step}
            for step in range(1000)
        ]
        (folder / "distances.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "config.json").write_text(json.dumps({"budget": {"epochs": 1}}))
        (folder / "result.json").write_text(json.dumps({"value": 1.0, "metric": "distance"}))
    record(arms, seeds=(0,), metric="distance", figures=("distances",)).write(tmp_path)
    return tmp_path


def test_distances(equivalence):
    from spatialgrad.report.tables.results import build_tables

    study = load_results(equivalence)
    (figure,) = build_figures(study, "f")
    assert "float64, seed 0: 1.0e-12 after step 999" in figure.alt
    assert "float32, seed 0: 1.0e-03 after step 999" in figure.alt
    assert len(figure.svg) < 100_000  # a thousand steps are thinned
    assert re.search(r">10⁻[⁰¹²³⁴⁵⁶⁷⁸⁹]+<", figure.svg)
    assert "mathdefault" not in figure.svg
    (table,) = build_tables(study)
    assert [cell.lines[0] for cell in table.rows[1][2:]] == ["1.0e−03", "1.0e−03", "1.0e−03", "999", "1"]
    assert "float32: float32" in table.notes


def test_bands_are_over_seeds_and_finished_runs_come_first(tmp_path):
    arms = [arm("a", "A", {}, (0, 1, 2))]
    write_run(tmp_path / "runs/a/seed0", 0.5)
    write_run(tmp_path / "runs/a/seed1", 0.6, seed=1)
    write_run(tmp_path / "runs/a/seed2", 0.1, seed=2, state="interrupted")
    record(arms, figures=("learning-curves",)).write(tmp_path)
    (figure,) = build_figures(load_results(tmp_path), "f")
    assert "A 55.00 ± 7.07 % after epoch 4 (2 seeds)" in figure.alt


def test_a_single_search_and_one_over_many_values(searched):
    (figure,) = [each for each in build_figures(load_results(searched), "f") if each.name == "search"]
    assert figure.svg.count("stroke-width") == 1  # one best
    assert "14 of 16 points" in figure.caption


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_every_figure_waits_for_data(tmp_path, name):
    record([arm("a", "A", {}, (0,))], figures=(name,)).write(tmp_path)
    (figure,) = build_figures(load_results(tmp_path), "f")
    assert "no data yet" in figure.alt
    assert not figure.svg


def test_without_any_checkpoint_that_can_be_read_the_reason_is_told(tmp_path):
    write_run(tmp_path / "runs/a/seed0", 0.5)
    (tmp_path / "runs/a/seed0/checkpoint.pt").write_bytes(b"PK")
    record([arm("a", "A", {}, (0,))], seeds=(0,), figures=("kernel-magnitudes",)).write(tmp_path)
    (figure,) = build_figures(load_results(tmp_path), "f")
    assert "no data yet" in figure.alt
    assert "runs/a/seed0/checkpoint.pt is damaged" in figure.caption
    assert str(tmp_path) not in figure.caption
