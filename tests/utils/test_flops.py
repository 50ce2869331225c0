import pytest
import torch
from torch import nn

from spatialgrad.utils.flops import count


def test_counts_by_hand():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, groups=1), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(128, 5))
    found = count(model, (3, 4, 4))
    assert found.parameters == 3 * 8 * 9 + 8 + 16 + 128 * 5 + 5
    assert found.macs == 3 * 8 * 9 * 16 + 128 * 5
    assert str(found) == "0.0 M parameters, 0 M MACs"


class CountsCalls(nn.Module):
    """Writes to a buffer, even in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x


def test_counting_leaves_the_model_alone_and_looks_through_wrappers():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), CountsCalls()).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert count(torch.compile(model, backend="eager"), (3, 8, 8)) == count(model, (3, 8, 8))
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_lazy_layers_are_initialized():
    assert count(nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d()), (3, 8, 8)).macs == 3 * 4 * 9 * 36


@pytest.mark.parametrize("size", [(), (3, 0, 8)])
def test_a_wrong_input_size_is_refused(size):
    with pytest.raises(ValueError, match="Invalid input_size"):
        count(nn.Linear(2, 2), size)
