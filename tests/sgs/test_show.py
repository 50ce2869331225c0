"""Tables, numbers and pictures of scalings."""

import sys

import pytest
import torch
from torch import nn

from spatialgrad import Live, SpatialGradientScaling, scaling_from_ratios
from support.common import batches, train_
from support.live import build as build_live
from support.scaling import build, images

G = scaling_from_ratios(2, 4)  # a quarter of its sum is in the centre


class TestTables:
    def test_a_row_per_layer(self):
        _, _, sgs = build(scalings={"0": G, "3": torch.tensor([[0.5, 2.0, 0.5]])}, measure=None)
        title, *lines = str(sgs).splitlines()
        assert title == repr(sgs)
        assert lines == [
            "layer  kernel  centre  updates  next update",
            "0      3×3     25.0 %  0        never",
            "3      1×3     66.7 %  0        never",
        ]

    @pytest.mark.parametrize(
        ("live", "steps", "updates", "next_update"),
        [
            (False, 0, "1", "by sgs.update"),
            (Live(at=(3,), every=9, batches=1), 2, "0", "after step 3"),
            (Live(at=(3,), every=9, batches=1), 4, "0", "now"),
            (Live(at=(3,), every=9, batches=1), 5, "1", "after step 12"),
        ],
    )
    def test_updates_past_and_to_come(self, live, steps, updates, next_update):
        model, optimizer, sgs = build_live(live=live)
        train_(model, optimizer, batches(steps))
        if not live:
            sgs.update(batches(1))
        for line in str(sgs).splitlines()[2:]:
            assert line.split("%")[1].split(maxsplit=1) == [updates, next_update]
        sgs.detach(warn=False)
        assert str(sgs).endswith("detached")

    def test_a_state_brings_the_number_of_updates(self):
        _, _, sgs = build()
        sgs.update(images())
        _, _, fresh = build()
        fresh.load_state_dict(sgs.state_dict())
        assert str(fresh) == str(sgs)

    def test_notebooks_get_html_without_markup_from_names(self):
        model = nn.Sequential()
        model.add_module("<b>&", nn.Conv2d(3, 4, 3))
        sgs = SpatialGradientScaling(model, torch.optim.SGD(model.parameters(), lr=0.1))
        page = sgs._repr_html_()
        assert "<tr><td>&lt;b&gt;&amp;</td><td>3×3</td><td>11.1 %</td><td>0</td><td>by sgs.update</td></tr>" in page
        assert page.count("<tr>") == 2
        assert "measure=&#x27;mutual-information&#x27;" in page


def test_numbers_for_a_tracker():
    _, _, sgs = build(scalings={"0": G}, measure=None)
    assert sgs.summary() == pytest.approx(
        {"spatialgrad/updates": 0, "spatialgrad/centre/0": 25, "spatialgrad/centre/3": 100 / 3}
    )
    assert all(type(value) is float for value in sgs.summary().values())
    sgs.set_scalings({"0": G.expand(8, 3, 3, 3)})  # a factor for every element of the weight
    assert sgs.summary()["spatialgrad/centre/0"] == pytest.approx(25)


def test_a_picture_of_every_scaling(monkeypatch):
    _, _, sgs = build(scalings={"0": G}, measure=None)
    assert [ax.get_title() for ax in sgs.plot().axes] == ["0", "3"]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="plot_scalings needs matplotlib: pip install matplotlib"):
        sgs.plot()
