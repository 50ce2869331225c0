"""A small network of everything that matters to scaling, built and trained in one line."""

import torch
from torch import nn
from torch.nn import functional as F

from spatialgrad import SpatialGradientScaling


def small_net():
    """Convolutions "0" (3×3) and "3" (1×3) that can be scaled, "5" (1×1) that cannot, BatchNorm and dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, (1, 3), padding=(0, 1)),
        nn.Dropout(0.5),
        nn.Conv2d(8, 8, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


def images(number=16):
    """Smooth images from torch's global random state."""
    return F.avg_pool2d(torch.rand(number, 3, 12, 12), 3, 1, 1)


def build(model=None, **settings):
    model = model or small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, SpatialGradientScaling(model, optimizer, **settings)


def measured(data, model=None, **settings):
    """The scalings of an update of a fresh network."""
    return build(model, **settings)[2].update(data)


def train(model, optimizer, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(images()), torch.randint(0, 5, (16,))).backward()
        optimizer.step()
