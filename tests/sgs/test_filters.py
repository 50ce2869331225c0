import pytest
import torch
from spatialgrad.sgs.filters import Filters
from torch import nn

from support.scaling import build, images


@pytest.fixture
def conv():
    return nn.Conv2d(3, 4, (1, 3))


def test_one_value_per_position_for_every_input_channel(conv):
    filters = Filters({"conv": conv})
    assert torch.equal(filters.scalings()["conv"], torch.ones(1, 3))
    G = torch.tensor([[0.5, 2.0, 0.5]])
    filters.copy_({"conv": G})
    weight, values = filters.pair("conv")
    assert weight is conv.weight
    assert torch.equal(weight * values, weight * G)
    assert torch.equal(filters.scalings()["conv"], G)


def test_the_layout_of_the_weight():
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    filters = Filters({"conv": conv})
    _, values = filters.pair("conv")
    assert values.stride() == conv.weight[0].stride()
    assert filters.scalings()["conv"].is_contiguous()


def test_a_weight_that_moves_takes_its_filter_along(conv):
    filters = Filters({"conv": conv})
    conv.to("meta")
    weight, values = filters.pair("conv")
    assert weight.device == values.device == torch.device("meta")


def test_names_by_kernel_size(conv):
    filters = Filters({"row": conv, "square": nn.Conv2d(3, 4, 3)})
    assert filters.names_with_kernel((1, 3)) == ["row"]
    assert filters.names_with_kernel((5, 5)) == []


def test_updates_and_states_are_written_into_the_same_memory():
    _, _, sgs = build()
    before = {name: sgs._filters.pair(name)[1].data_ptr() for name in sgs.scalings}
    sgs.update(images())
    sgs.load_state_dict(sgs.state_dict())
    assert {name: sgs._filters.pair(name)[1].data_ptr() for name in before} == before
