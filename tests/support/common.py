"""A tiny network, images for it, and the arithmetic of scaling written out by hand, to compare trainings with."""

import copy
import os
import signal
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

CLASSES = 5


def python_environment():
    """Variables for a Python process that imports what this one does, with one thread: other tests run beside it."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}


class TinyNet(nn.Module):
    """Three convolutions that can be scaled, of different kernels, and a 1×1 that cannot."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.wide = nn.Conv2d(6, 6, (1, 3), padding=(0, 1), groups=2)
        self.point = nn.Conv2d(6, 6, 1)
        self.last = nn.Conv2d(6, 8, 3, stride=2, bias=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = F.relu(self.first(x))
        x = F.relu(self.wide(x))
        x = F.relu(self.last(self.point(x)))
        return self.head(x.mean((2, 3)))


# Classes that decay weights beside their update.
DECOUPLED = {"AdamW", "Lion", "Muon", "NAdamW"}
SCALED = {"first": (3, 3), "wide": (1, 3), "last": (3, 3)}


def some_scalings():
    """A scaling without any symmetry for each convolution, so that a mix-up of positions or layers shows."""
    generator = torch.Generator().manual_seed(7)
    return {name: 0.2 + 2 * torch.rand(size, generator=generator) for name, size in SCALED.items()}


def images(number=8, seed=0, size=10):
    """Smooth random images and labels; the same ones for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    x = F.avg_pool2d(torch.rand(number, 3, size, size, generator=generator), 3, 1, 1)
    return x, torch.randint(0, CLASSES, (number,), generator=generator)


def dataset(number=32):
    return TensorDataset(*images(number))


def rows(number=32):
    """The images of `dataset` as dicts, with their index, in the form that Transformers' Trainer wants."""
    return [{"pixel_values": x, "labels": y, "index": index} for index, (x, y) in enumerate(dataset(number))]


def batches(number=4, size=8):
    return [images(size, seed) for seed in range(number)]


def loss_of(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y)


def scale_by_hand_(model, scalings):
    """What must happen to the gradients between backward and step."""
    for name, G in scalings.items():
        weight = model.get_parameter(f"{name}.weight")
        if weight.grad is not None:
            weight.grad.copy_(torch.einsum("oihw,hw->oihw", weight.grad, G.to(weight.grad)))


@torch.no_grad()
def scale_update_by_hand_(model, old, scalings, optimizer):
    """What must happen to the weights after a step, given the model before it; decoupled decay is not scaled."""
    decoupled = DECOUPLED & {kind.__name__ for kind in type(optimizer).__mro__}
    for name, G in scalings.items():
        before, after = (m.get_parameter(f"{name}.weight") for m in (old, model))
        group = next(g for g in optimizer.param_groups if any(p is after for p in g["params"]))
        start = before * (1 - group["lr"] * group["weight_decay"]) if decoupled else before
        after.copy_(start + G.to(start.device) * (after - start))


def step_by_hand_(model, optimizer, scalings, apply):
    """An optimizer step with scaling, without the package."""
    if apply == "gradient":
        scale_by_hand_(model, scalings)
        optimizer.step()
        return
    old = copy.deepcopy(model)
    optimizer.step()
    scale_update_by_hand_(model, old, scalings, optimizer)


def train_(model, optimizer, data):
    """The loop that everybody writes; scaling, if any, comes with the optimizer."""
    for batch in data:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


def train_by_hand_(model, optimizer, data, scalings, apply="gradient"):
    for batch in data:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        step_by_hand_(model, optimizer, scalings, apply)


def same_matrices(left, right):
    """Bit for bit, by name."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def same_weights(model, reference):
    """Bit for bit."""
    return same_matrices(model.state_dict(), reference.state_dict())


# Two formulations of the same training, such as this file's and the package's, may round differently: after 8 steps of
# TinyNet by 0.03 of this tolerance. Wrong scalings differ by more: a factor of 1.001 by 40 times the tolerance, one
# layer of three unscaled by 190 times, flipped scalings by 11,000 times, none at all by 22,000 times.
STEPS_ALIKE = {"rtol": 1e-5, "atol": 1e-6}
# If both measure G as well, one pixel beyond the edge of a bin changes G by about 0.001. Of this tolerance, measured
# scalings with one layer of three unscaled differ by 3 to 15 times, flipped ones by 30 times, none at all by 300 times.
UPDATES_ALIKE = {"rtol": 1e-3, "atol": 1e-4}
MATRICES_ALIKE = {"rtol": 0, "atol": 2e-3}
# One rounding to bfloat16 is 0.004. Without scaling, weights differ by 0.02.
BFLOAT16_ALIKE = {"rtol": 1e-2, "atol": 1e-3}


def close_matrices(left, right, tolerance=STEPS_ALIKE):
    """By name, up to rounding."""
    return left.keys() == right.keys() and all(torch.allclose(left[name], right[name], **tolerance) for name in left)


def close_weights(model, reference, tolerance=STEPS_ALIKE):
    """Up to rounding."""
    return close_matrices(model.state_dict(), reference.state_dict(), tolerance)


def define_torchvision_operators():
    """Let torchvision be imported beside a torch that it was not built for: it registers kernels of these two."""
    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARIES.append(library)


_LIBRARIES = []  # the definitions live as long as their library


def default_signals():
    """Handle signals as a command does that a shell starts; a test runner may ignore some of them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
