"""Which networks are not safe with their channels last in memory."""

import pytest
from torch import nn

from spatialgrad.models import create_model
from spatialgrad.train.memory_format import unsafe_in_channels_last


@pytest.mark.parametrize(
    ("conv", "unsafe"),
    [
        (nn.Conv2d(4, 8, 1, stride=2), True),
        (nn.Conv2d(15, 8, 1, stride=(1, 2)), True),
        (nn.Conv2d(32, 8, 1, stride=2, groups=4), True),
        (nn.Conv2d(16, 8, 1, stride=2), False),
        (nn.Conv2d(4, 8, 1), False),
        (nn.Conv2d(4, 8, 3, stride=2, padding=1), False),
        (nn.Conv2d(4, 8, (1, 3), stride=2), False),
        (nn.Linear(4, 8), False),
    ],
)
def test_strided_points_over_few_channels(conv, unsafe):
    assert unsafe_in_channels_last(nn.Sequential(nn.ReLU(), conv)) == ("1" if unsafe else None)


@pytest.mark.parametrize(("width", "found"), [(1 / 16, "layer2.0.downsample.0"), (1 / 4, None)])
def test_narrow_networks(width, found):
    assert unsafe_in_channels_last(create_model("resnet18", width=width)) == found
