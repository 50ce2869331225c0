"""Live updates written out by hand: which inputs a convolution saw, and the scaling that follows from them."""

import itertools
import math
from contextlib import contextmanager

import numpy as np
import torch

from spatialgrad import Live, SpatialGradientScaling
from support.common import SCALED, TinyNet, batches, loss_of, scale_by_hand_, train_

# Ranges from the steps 2 and 3 (counted from 0), counts from 4 and 5; and again from step 8 on.
SCHEDULE = Live(at=(2, 8), every=8, batches=2)
RANGES, COUNTS = (2, 3), (4, 5)
STEPS = 7


def build(model=None, live=SCHEDULE, optimizer=torch.optim.SGD, lr=0.1, **settings):
    torch.manual_seed(0)
    model = model or TinyNet()
    optimizer = optimizer(model.parameters(), lr=lr)
    return model, optimizer, SpatialGradientScaling(model, optimizer, live=live, **settings)


def trained(model=None, data=None, **settings):
    """The model and the scaling after an undisturbed training."""
    model, optimizer, sgs = build(model, **settings)
    train_(model, optimizer, data or some_batches())
    return model, sgs


def hooks_on(model):
    """The number of forward pre-hooks on all modules."""
    return sum(len(module._forward_pre_hooks) for module in model.modules())


@contextmanager
def recording(model, into, names=tuple(SCALED)):
    """Add the inputs of convolutions to lists by name."""
    handles = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda module, args, name=name: into.setdefault(name, []).append(args[0].detach().clone())
        )
        for name in names
    ]
    yield
    for handle in handles:
        handle.remove()


def scalings_by_hand(model, ranges, counts, k=5.0):
    """G by name, from the maps of the first steps (ranges) and of the next ones (counts), with numpy alone."""
    return {
        name: torch.tensor(_scaling(model.get_submodule(name), ranges[name], counts[name], k), dtype=torch.float32)
        for name in ranges
    }


def train_by_hand(model, optimizer, data):
    """A training with one live update, with the schedule of this file."""
    scalings, ranges, counts = {}, {}, {}
    for step, batch in enumerate(data):
        optimizer.zero_grad()
        with recording(model, ranges if step in RANGES else counts if step in COUNTS else {}):
            loss = loss_of(model, batch)
        loss.backward()
        scale_by_hand_(model, scalings)
        optimizer.step()
        if step == max(COUNTS):
            scalings = scalings_by_hand(model, ranges, counts)
    return scalings


def some_batches(number=STEPS):
    """Batches whose ranges differ, so that some of those counted lie outside of those measured before."""
    return [(x * (1 + 0.2 * i), y) for i, (x, y) in enumerate(batches(number))]


def _scaling(conv, first, then, k):
    first, then = ([_padded(maps, conv) for maps in part] for part in (first, then))
    bins = 1 + math.ceil(math.log2(sum(maps[:, 0].size for maps in first)))
    channels = []
    for channel in range(conv.in_channels):
        low = min(maps[:, channel].min() for maps in first)
        high = max(maps[:, channel].max() for maps in first)
        if high == low:
            continue
        levels = [np.clip((maps[:, channel] - low) * (bins / (high - low)), 0, bins - 1).astype(int) for maps in then]
        S = np.ones(conv.kernel_size)
        for position in itertools.product(*map(range, conv.kernel_size)):
            dy, dx = (index - side // 2 for index, side in zip(position, conv.kernel_size, strict=True))
            S[position] = _nmi(levels, dy, dx, bins) if dy or dx else 1.0
        if np.isnan(S).any():
            continue
        channels.append(k * S / ((k - 1) * S + 1))
    G = np.mean(channels, axis=0)
    return G / G.mean()


def _padded(maps, conv):
    dy, dx = conv.padding
    return np.pad(maps.double().cpu().numpy(), ((0, 0), (0, 0), (dy, dy), (dx, dx)))


def _nmi(levels, dy, dx, bins):
    joint = np.zeros((bins, bins))
    for maps in levels:
        height, width = maps.shape[1:]
        here = maps[:, max(0, -dy) : height - max(0, dy), max(0, -dx) : width - max(0, dx)]
        there = maps[:, max(0, dy) : height - max(0, -dy), max(0, dx) : width - max(0, -dx)]
        np.add.at(joint, (here.ravel(), there.ravel()), 1)
    joint /= joint.sum()
    both = _entropy(joint)
    if both == 0:
        return math.nan
    return (_entropy(joint.sum(0)) + _entropy(joint.sum(1)) - both) / both


def _entropy(p):
    p = p[p > 0]
    return -(p * np.log(p)).sum()
