"""`plot_scalings`: a heat map per layer, with the share of its centre."""

import sys

import pytest
import torch

from spatialgrad import plot_scalings
from spatialgrad.plot import HIGH, LOW, NEUTRAL, as_matrix, centre_share, readable_on, scaling_colours

SCALINGS = {
    "stem": torch.full((7, 7), 1.0),
    "layers.0.a.very.long.name.conv": [[0.5, 0.5, 0.5], [0.5, 5.0, 0.5], [0.5, 0.5, 0.5]],
    "one": torch.tensor([0.75, 1.5, 0.75]),
    "three": torch.ones(3, 3, 3),
}


def texts(figure):
    return [text.get_text() for ax in figure.axes for text in (ax.title, *ax.texts) if text.get_text()]


def test_a_map_per_layer_with_its_values_and_the_share_of_the_centre(tmp_path):
    figure = plot_scalings(SCALINGS, columns=3)
    assert sum(len(ax.images) for ax in figure.axes) == 4
    shown = texts(figure)
    shares = [text.removeprefix("centre ") for text in shown if text.startswith("centre")]
    assert shares == ["11 %", "56 %", "50 %", "11 %"]
    assert shown[0] == "stem"
    assert "….long.name.conv" in shown
    assert shown.count("5.00") == 1  # a 7×7 kernel has colours only
    figure.savefig(tmp_path / "scalings.png")
    assert (tmp_path / "scalings.png").stat().st_size > 1000


def test_the_share_of_the_centre_by_hand():
    assert centre_share(torch.ones(3, 3)) == pytest.approx(100 / 9)
    large = torch.full((7, 7), 0.1)
    large[2:5, 2:5] = torch.tensor(SCALINGS["layers.0.a.very.long.name.conv"])
    assert centre_share(large) == pytest.approx(100 * 5 / 9)  # only the central 3×3 positions count
    assert centre_share([[1.0, 2.0, 1.0]]) == pytest.approx(50)
    assert centre_share(torch.zeros(3, 3)) == 0
    assert as_matrix(torch.ones(3, 2, 5)).shape == (2, 5)


def test_colours_are_neutral_at_one_and_every_value_can_be_read():
    norm, colours = scaling_colours([torch.tensor([[0.0, 3.0]])])
    for value, colour in ((0.0, LOW), (1.0, NEUTRAL), (3.0, HIGH)):
        expected = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        assert colours(norm(value))[:3] == pytest.approx(expected, abs=0.01)

    def light(rgb):
        return sum(
            factor * (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4)
            for factor, c in zip((0.2126, 0.7152, 0.0722), rgb, strict=False)
        )

    for step in range(301):
        colour = colours(norm(step / 100))
        high, low = sorted((light(colour), 1.0 if readable_on(colour) == "#ffffff" else 0.0), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5


def test_errors_say_what_to_do(monkeypatch):
    with pytest.raises(ValueError, match=r"no scalings to plot.*update\(loader\)"):
        plot_scalings({})
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        plot_scalings(SCALINGS)
