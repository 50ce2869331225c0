"""What branches cost, in parameters and multiply-accumulates; on the meta device, which computes nothing."""

import pytest
import torch
from torch import nn

from spatialgrad.models import create_model
from spatialgrad.reparam import DBB, count, merge, reparameterize_
from support.reparam import BLOCKS


# Weights of a 4→4 convolution in units of 4 · 4, and BatchNorms.
@pytest.mark.parametrize(
    ("method", "weights", "norms"), [("acb", 15, 3), ("repvgg", 10, 3), ("qarepvgg", 10, 2), ("dbb", 21, 6)]
)
def test_methods_cost_what_their_branches_do(method, weights, norms):
    model = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))
    plain = count(model, (4, 8, 8))
    branched = count(reparameterize_(model, BLOCKS[method]), (4, 8, 8))
    assert branched.parameters == 4 * 4 * weights + norms * 8
    assert branched.macs == plain.macs * weights // 9
    assert count(merge(model), (4, 8, 8)).macs == plain.macs


# As printed in the tables of the paper: 10⁹ or 10⁶ multiply-accumulates and 10⁶ parameters, plain and with DBB.
PRINTED = {
    "resnet18-imagenet": (1e9, ("1.81", "11.7"), ("4.13", "26.3")),
    "resnet34-imagenet": (1e9, ("3.66", "21.8"), ("8.44", "49.9")),
    "resnet50-imagenet": (1e9, ("4.09", "25.6"), ("6.79", "40.7")),
    "vgg16-slim": (1e8, ("3.14", "15.0"), ("7.28", "34.6")),  # the paper prints 34.7, see below
}


@pytest.mark.parametrize("name", PRINTED)
def test_dbb_costs_what_the_paper_prints(name):
    unit, *printed = PRINTED[name]
    side = 224 if name.endswith("imagenet") else 32
    with torch.device("meta"):
        model = create_model(name)
        found = [count(model, (3, side, side))]
        reparameterize_(model, DBB(), preserve=False)
        found.append(count(model, (3, side, side)))
    assert [(f"{cost.macs / unit:.2f}", f"{cost.parameters / 1e6:.1f}") for cost in found] == printed
    if name == "vgg16-slim":
        # All figures to the digit but one. The multiply-accumulates leave no room for other convolutions. Counted with
        # the BatchNorms' running statistics, it is 34.7 M, but ResNet-34 would not fit its figure if counted so.
        assert found[1].parameters == 34_601_843
        statistics = sum(buffer.numel() for buffer in model.buffers())
        assert f"{(found[1].parameters + statistics) / 1e6:.1f}" == "34.7"
