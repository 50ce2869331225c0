"""A user's own repository: a module with functions that build networks, in the working directory."""

import sys

import pytest

SOURCE = """
import torch
from torch import nn


class Net(nn.Module):
    '''Two blocks; the second one is behind an `if` that no tracer can follow.'''

    def __init__(self, num_classes, in_channels, channels, traceable):
        super().__init__()
        self.traceable = traceable
        self.first = nn.Conv2d(in_channels, channels, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.point = nn.Conv2d(channels, channels, 1)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(channels, num_classes)

    def forward(self, x):
        x = self.norm1(self.first(x)).relu()
        if self.traceable or x.sum() >= 0:
            x = self.norm2(self.second(x)).relu()
        return self.head(self.dropout(self.point(x).relu().mean((2, 3))))


def build(num_classes, in_channels=3, channels=4, traceable=True):
    return Net(num_classes, in_channels, channels, traceable)


def color_only(num_classes=7):
    return Net(num_classes, 3, 4, True)


def tuned(num_classes, in_channels=3, pretrained=False):
    model = Net(num_classes, in_channels, 4, True)
    if pretrained:
        model.first.load_state_dict(torch.load("weights.pt", weights_only=True))
    return model


def anything(**options):
    assert "in_channels" not in options and "pretrained" not in options
    return Net(options.pop("num_classes"), 1, options.pop("channels", 4), True)


class Nets:
    @staticmethod
    def small(num_classes, in_channels=3):
        return Net(num_classes, in_channels, 2, True)


def no_classes(channels):
    return Net(10, 3, channels, True)


def no_network(num_classes):
    return {"classes": num_classes}


def broken(num_classes):
    raise KeyError("the weather")


def two_outputs(num_classes, in_channels=3):
    class Two(Net):
        def forward(self, x):
            y = super().forward(x)
            return (y, y) if self.training else y

    return Two(num_classes, in_channels, 4, True)


def too_few(num_classes, in_channels=3):
    return Net(num_classes - 1, in_channels, 4, True)


def dense(num_classes, in_channels=3):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))


NUMBER = 3
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """The module `usernets` in the working directory; returns that folder."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "usernets.py").write_text(SOURCE)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    sys.modules.pop("usernets", None)
