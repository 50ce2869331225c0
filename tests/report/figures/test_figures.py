"""Figures on their own: what is drawn, in which colours, and what is said about it."""

import re
from typing import get_args
from xml.etree import ElementTree

import pytest

from spatialgrad.plot import scaling_colours
from spatialgrad.report.figures import build_figures
from spatialgrad.report.figures.base import SERIES, HeatRow, draw, draw_heat_rows, plain
from spatialgrad.report.load import load_results
from spatialgrad.report.tables.results import build_tables
from spatialgrad.studies.study import FigureName
from support.report import arm, record, write_arm, write_lines, write_run


def test_a_drawing_has_its_own_ids_and_the_colours_of_the_page():
    def paint(axes):
        axes[0].plot([0, 1], [2, 3], color=SERIES[1])
        axes[0].set_title('id="x" url(#y) <b> & $\\frac{')
        axes[0].set_xlabel("GPU\x07 hours")

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
    assert "GPU hours" in texts


def test_texts_of_drawings():
    assert plain("a\nb \td") == "a b d"
    assert plain("x" * 100, 10) == "x" * 9 + "…"


def test_heat_maps_show_the_values_of_small_kernels():
    norm, colours = scaling_colours([[[2.0]]])

    def drawn(matrix):
        row = HeatRow(title="<&", matrices=[matrix] * 9, norm=norm, colours=colours)
        svg, _ = draw_heat_rows("x", [row], [f"<layer{number}" for number in range(9)], bold=["<layer3"])
        root = ElementTree.fromstring(svg)
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        return texts, svg.count("<image")

    texts, images = drawn([[1.25] * 3] * 3)
    assert (texts.count("1.25"), images) == (81, 9)
    assert texts.count("<&") == 2  # nine columns are two blocks
    assert "<layer8" in texts
    texts, images = drawn([[1.25] * 7] * 7)
    assert ("1.25" in texts, images) == (False, 9)  # the page shows them when a layer is selected
    texts, images = drawn(None)
    assert (texts.count("–"), images) == (9, 0)


@pytest.fixture
def equivalence(tmp_path):
    arms = [arm(key, key, {"Model": "VGG-11"}, (0,), note=key) for key in ("float64", "float32")]
    for each, size in zip(arms, (1e-15, 1e-6), strict=True):
        write_arm(tmp_path, each, [1.0], metric="distance")
        lines = [
            {"step": step, "distance": size * step, "loss_branched": 2.0, "loss_scaled": 2.0 + size * step}
            for step in range(1000)
        ]
        write_lines(tmp_path / each.runs[0].folder / "distances.jsonl", lines)
    record(arms, seeds=(0,), metric="distance", figures=("distances",)).write(tmp_path)
    return tmp_path


def test_distances(equivalence):
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
    assert figure.svg.count("var(--series-1)") == 1  # one best
    assert "14 of 16 points" in figure.caption


@pytest.mark.parametrize("name", get_args(FigureName))
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
