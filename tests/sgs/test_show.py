"""Tables, numbers and pictures of scalings."""

import sys

import pytest
import torch
from torch import nn

from spatialgrad import Live, scaling_from_ratios
from support.common import batches, train_
from support.live import build as build_live
from support.scaling import build

G = scaling_from_ratios(2, 4)  # a quarter of its sum is in the centre


def test_a_row_per_layer_in_terminals_and_notebooks():
    model = nn.Sequential(nn.Conv2d(3, 8, 3))
    model.add_module("<b>&", nn.Conv2d(8, 8, (1, 3)))
    scalings = {"0": G, "<b>&": torch.tensor([[0.5, 2.0, 0.5]])}
    _, _, sgs = build(model, scalings=scalings, measure=None)
    title, *lines = str(sgs).splitlines()
    assert title == repr(sgs)
    assert lines == [
        "layer  kernel  centre  updates  next update",
        "0      3×3     25.0 %  0        never",
        "<b>&   1×3     66.7 %  0        never",
    ]
    page = sgs._repr_html_()
    assert "<tr><td>&lt;b&gt;&amp;</td><td>1×3</td><td>66.7 %</td><td>0</td><td>never</td></tr>" in page
    assert page.count("<tr>") == 3
    assert "measure=None, k=5, apply=&#x27;gradient&#x27;" in page


@pytest.mark.parametrize(
    ("live", "steps", "updates", "next_update"),
    [
        (False, 0, "1", "by sgs.update"),
        (Live(at=(3,), every=9, batches=1), 2, "0", "after step 3"),
        (Live(at=(3,), every=9, batches=1), 4, "0", "now"),
        (Live(at=(3,), every=9, batches=1), 5, "1", "after step 12"),
    ],
)
def test_updates_past_and_to_come(live, steps, updates, next_update):
    model, optimizer, sgs = build_live(live=live)
    train_(model, optimizer, batches(steps))
    if not live:
        sgs.update(batches(1))
        fresh = build_live(live=False)[2]
        fresh.load_state_dict(sgs.state_dict())
        assert str(fresh) == str(sgs)
    for line in str(sgs).splitlines()[2:]:
        assert line.split("%")[1].split(maxsplit=1) == [updates, next_update]
    sgs.detach(warn=False)
    assert str(sgs).endswith("detached")


def test_numbers_for_a_tracker_and_a_picture_of_every_scaling(monkeypatch):
    _, _, sgs = build(scalings={"0": G}, measure=None)
    centres = {"spatialgrad/centre/0": 25, "spatialgrad/centre/3": 100 / 3}
    assert sgs.summary() == pytest.approx({"spatialgrad/updates": 0, **centres})
    assert all(type(value) is float for value in sgs.summary().values())
    assert [ax.get_title() for ax in sgs.plot().axes] == ["0", "3"]
    sgs.set_scalings({"0": G.expand(8, 3, 3, 3)})  # a factor for every element of the weight
    assert sgs.summary()["spatialgrad/centre/0"] == pytest.approx(25)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="plot_scalings needs matplotlib: pip install matplotlib"):
        sgs.plot()
