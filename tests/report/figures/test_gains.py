"""Differences with their intervals: as points, and as a map."""

import re

import pytest

from spatialgrad.report.figures.gains import gain_map, gains
from spatialgrad.report.load import load_results
from spatialgrad.report.tables.results import compare_all
from support.report import arm, minus, record, write_arm

VALUES = {
    ("2,000", "1,000"): ((0.50, 0.52, 0.51), (0.55, 0.57, 0.562)),
    ("2,000", "10,000"): ((0.60, 0.62, 0.61), (0.60, 0.615, 0.62)),
    ("32,000", "1,000"): ((0.70, 0.72, 0.71), (0.69, 0.712, 0.70)),
    ("32,000", "10,000"): ((0.80, 0.82, 0.81), (0.83, 0.85, 0.842)),
}


@pytest.fixture
def study(tmp_path):
    arms = []
    for (images, steps), both in VALUES.items():
        group = {"Training images": images, "Training steps": steps}
        for label, values in zip(("Plain", "SGS"), both, strict=True):
            key = f"{images}-{steps}-{label}".replace(",", "").lower()
            arms.append(arm(key, label, group, (0, 1, 2), reference=label == "Plain"))
            write_arm(tmp_path, arms[-1], values)
    record(arms, figures=("gain-map", "gains")).write(tmp_path)
    return load_results(tmp_path)


def test_the_map_has_every_difference_with_its_interval(study):
    figure = gain_map(study, "x")
    compared = compare_all(study)
    shown = [each for key, each in compared.items() if each is not None]
    assert len(shown) == 4
    for each in shown:
        assert minus(f"{each.difference:+.2f}") in figure.svg
        assert minus(f"{each.low:+.2f} to {each.high:+.2f}") in figure.svg
        assert minus(f"{each.difference:+.2f} ({each.low:+.2f} to {each.high:+.2f})") in figure.alt
    bold = re.findall(r"font-weight: 700[^>]*>([^<]+)<", figure.svg)
    assert bold == [minus(f"{each.difference:+.2f}") for each in shown if each.supported] == ["+5.07", "−0.93", "+3.07"]
    assert figure.title == "Difference by training images and training steps"


def test_numbers_are_in_their_order_and_not_in_that_of_texts(study):
    svg = gain_map(study, "x").svg
    places = {text: svg.index(f">{text}<") for text in ("2,000", "32,000", "1,000", "10,000")}
    assert places["1,000"] < places["10,000"]
    assert places["2,000"] < places["32,000"]


def test_every_row_is_named_and_told(study):
    figure = gains(study, "x")
    assert all(f"{images} · {steps}" in figure.svg for images, steps in VALUES)
    assert figure.alt.count("significant") == 3
    assert "32,000 · 10,000 +3.07 (" in figure.alt


def test_nothing_to_compare_is_no_figure(tmp_path):
    group = {"Training images": "1", "Training steps": "2"}
    record([arm("plain", "Plain", group, (0,), reference=True)]).write(tmp_path)
    assert gains(load_results(tmp_path), "x") is None
    assert gain_map(load_results(tmp_path), "x") is None
