"""A network in the channels-last format stays so with branches: another format costs a copy per map and step."""

import copy

import pytest
import torch
from torch import nn

from spatialgrad.reparam import DBB, DyRep, merge, reparameterize_
from spatialgrad.reparam.branches import BRANCH_NAMES
from spatialgrad.reparam.geometry import memory_format_of
from support.reparam import BLOCKS, randomize_, relative

BLOCKS = {**BLOCKS, "dbb": DBB(branches=BRANCH_NAMES)}
LAYERS = {
    "plain": {},
    "strided": {"stride": 2},
    "grouped": {"groups": 2},
    "dilated": {"dilation": 2, "padding": 2},
    "cropped": {"padding": 0},
    "circular": {"padding_mode": "circular"},
    "reflect": {"padding_mode": "reflect"},
}


def network(**settings):
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, **{"padding": 1, **settings})
    )


def is_channels_last(tensor):
    return tensor.is_contiguous(memory_format=torch.channels_last) and memory_format_of(tensor) is torch.channels_last


def assert_channels_last(model, x):
    """Every weight, and every map that a part of the model returns."""
    weights = {name: parameter for name, parameter in model.named_parameters() if parameter.ndim == 4}
    assert [name for name, weight in weights.items() if not is_channels_last(weight)] == []
    maps = {}
    handles = [
        module.register_forward_hook(lambda module, args, output, name=name: maps.update({name: output}))
        for name, module in model.named_modules()
    ]
    model(x)
    for handle in handles:
        handle.remove()
    assert len(maps) >= 4
    assert [name for name, output in maps.items() if not is_channels_last(output)] == []


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("method", BLOCKS)
def test_blocks_keep_the_format_of_the_network(method, layer, device):
    model = network(**LAYERS[layer]).to(device)
    plain = randomize_(reparameterize_(copy.deepcopy(model), BLOCKS[method])).eval()
    last = reparameterize_(model.to(memory_format=torch.channels_last), BLOCKS[method]).eval()
    last.load_state_dict(plain.state_dict())
    x = torch.randn(2, 4, 9, 10, device=device)
    x_last = x.to(memory_format=torch.channels_last)
    with torch.no_grad():
        assert_channels_last(last, x_last)
        assert_channels_last(merge(last), x_last)
        assert relative(plain(x), last(x_last)) < 1e-4
        assert memory_format_of(plain(x)) is torch.contiguous_format


def test_grown_branches_keep_it(device):
    model = network().to(device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dyrep = DyRep(model, optimizer)
    x = torch.randn(4, 4, 8, 8, device=device).to(memory_format=torch.channels_last)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        assert dyrep.adjust(x).grown is not None
    assert_channels_last(model, x)
