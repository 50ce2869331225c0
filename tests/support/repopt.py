"""RepOptimizer's multipliers written out by hand, on a network small enough to be trained in every way."""

import copy

import torch
from torch import nn

from spatialgrad.reparam import LayerScales, RepOptScaling

# Optimizers by the power of the scales that belongs to them. With Adam's usual epsilon, rounding errors of gradients
# that are nearly zero would decide about whole steps.
OPTIMIZERS = {
    2: (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}),
    1: (torch.optim.Adam, {"lr": 0.01, "eps": 1e-5}),
}


class ScaledNet(nn.Module):
    """With and without an identity; no two processes share the channels of `odd` and `narrow` equally."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.same = nn.Conv2d(6, 6, 3, padding=1, groups=2, bias=False)
        self.odd = nn.Conv2d(6, 5, 3, stride=2)
        self.narrow = nn.Conv2d(5, 1, 3, padding=1)
        self.head = nn.Linear(1, 5)

    def forward(self, x):
        x = self.odd(self.same(self.first(x).relu()).relu()).relu()
        return self.head(self.narrow(x).mean((2, 3)))


CHANNELS = {"first": 6, "same": 6, "odd": 5, "narrow": 1}


def some_scales():
    """Other scales for every channel, so that a mix-up of channels, layers or shards shows."""
    generator = torch.Generator().manual_seed(5)

    def draw(channels):
        return 0.3 + torch.rand(channels, generator=generator)

    return {
        name: LayerScales(draw(channels), draw(channels), draw(channels) if name == "same" else None)
        for name, channels in CHANNELS.items()
    }


def multipliers_by_hand(model, power):
    """What multiplies the gradient of every element of every kernel."""
    multipliers = {}
    for name, scales in some_scales().items():
        values = torch.empty(tuple(model.get_parameter(f"{name}.weight").shape))
        for out, into, row, column in torch.cartesian_prod(*map(torch.arange, values.shape)).tolist():
            value = float(scales.kxk[out]) ** power
            if row == column == 1:
                value += float(scales.pointwise[out]) ** power
                value += scales.identity is not None and into == out % values.shape[1]
            values[out, into, row, column] = value
        multipliers[name] = values
    return multipliers


def multiplied(power, model=None, **settings):
    """A model under training with multipliers, and its twin that is to be trained by hand, with an optimizer each."""
    model = model or ScaledNet()
    twin = copy.deepcopy(model)
    optimizer, defaults = OPTIMIZERS[power]
    mine, other = (optimizer(net.parameters(), **{**defaults, **settings}) for net in (model, twin))
    assert RepOptScaling(model, mine, some_scales()).power == power
    return model, mine, twin, other


@torch.no_grad()
def multiplied_step_by_hand_(model, optimizer, power):
    """An optimizer step with multiplied gradients, and for the first power with multiplied updates."""
    multipliers, old = multipliers_by_hand(model, power), copy.deepcopy(model)
    for name, values in multipliers.items():
        weight = model.get_parameter(f"{name}.weight")
        weight.grad.copy_(weight.grad * values)
    optimizer.step()
    if power == 1:
        for name, values in multipliers.items():
            before, after = (net.get_parameter(f"{name}.weight") for net in (old, model))
            after.copy_(before + values * (after - before))
