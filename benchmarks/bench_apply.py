"""How much of a constant scaling reaches the weights, for each optimizer of the paper and each place to apply it.

The same network takes the same steps with and without a static G whose centre is 4 times its corners. The figure is
how much farther weights moved at the centre than at the corners, relative to the unscaled run: 4.0 means that G has its
full effect, 1.0 that the optimizer divides it out again.
Run: python benchmarks/bench_apply.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spatialgrad import SpatialGradientScaling, scaling_from_ratios
from spatialgrad.data import load_dataset, train_batches
from spatialgrad.models import create_model

RATIO = 4.0
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "SGD + momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
    "Adam": lambda p: torch.optim.Adam(p),
    "Adam, weight decay": lambda p: torch.optim.Adam(p, weight_decay=5e-4),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p),
}


def moved(make: Callable[[Any], torch.optim.Optimizer], apply: str | None, steps: int) -> Tensor:
    """Return the mean distance from the start at every kernel position, for each 3×3 convolution."""
    torch.manual_seed(0)
    dataset = load_dataset("fashion-mnist-mini").with_image_size(32)
    model = create_model("vgg11", num_classes=10, width=1 / 16, in_channels=1)
    optimizer = make(model.parameters())
    if apply:
        G = scaling_from_ratios(2, RATIO)
        SpatialGradientScaling(model, optimizer, measure=None, scalings=G, apply=apply)  # type: ignore[arg-type]
    convs = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    start = [conv.weight.detach().clone() for conv in convs]
    batches = train_batches(dataset, 64, seed=0, epoch=0)
    for (images, labels), _ in zip(batches, range(steps), strict=False):
        torch.manual_seed(1)  # the same dropout for all
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return torch.stack(
        [(conv.weight.detach() - old).abs().mean((0, 1)) for conv, old in zip(convs, start, strict=True)]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    print(f"vgg11 at 1/16 of its width, shipped images, {args.steps} steps, batch 64; G: centre / corner = {RATIO:g}")
    print(f"  {'optimizer':<20} {'gradient':>9} {'update':>9}")
    for name, make in OPTIMIZERS.items():
        plain = moved(make, None, args.steps)
        row = []
        for apply in ("gradient", "update"):
            relative = (moved(make, apply, args.steps) / plain).median(0).values
            corners = relative[::2, ::2].mean()
            row.append(float(relative[1, 1] / corners))
        print(f"  {name:<20} {row[0]:>9.2f} {row[1]:>9.2f}")


if __name__ == "__main__":
    main()
