"""How far every G of trained networks is from the published code's, with and without `drop_near`.

Claim: at most 0.002 with `drop_near`, and 0.02 without it, where one range per channel and one number of bins per layer
make counting several times cheaper; for the default number of images, as few images or another number of bins can make
the latter larger. G has mean 1.
The reference is `published.py`: one numpy histogram per channel and displacement, on the same maps of the same batch.
Run: SPATIALGRAD_DATA=... python benchmarks/bench_fidelity.py            (about 2 minutes on 2 cores)
     python benchmarks/bench_fidelity.py --network vgg16-slim --steps 50 --images 32
"""

from __future__ import annotations

import argparse
import itertools
import platform
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from published import published_dependence, published_scaling
from torch import Tensor, nn
from torch.nn import functional as F

from spatialgrad import normalized_mutual_information, scaling_from_dependence
from spatialgrad.data import ImageDataset, MissingDataError, load_dataset, train_batches
from spatialgrad.data.registry import data_root
from spatialgrad.models import create_model
from spatialgrad.utils.modules import named_convolutions

FALLBACK = "fashion-mnist-mini"
LARGE_IMAGES = "imagenette-160-mini.tar"


@dataclass(frozen=True)
class Case:
    """A network and the images that it is trained and measured on."""

    model: str
    dataset: str
    image_size: int
    share: int = 1
    """Large images take longer: batches and the number of measured images are divided by this."""


@dataclass(frozen=True)
class Difference:
    """The largest deviation of a layer's G."""

    layer: str
    size: tuple[int, int]
    largest: float
    mean: float


def cases(root: Path) -> list[Case]:
    return [
        Case("vgg16-slim", "cifar100", 32),
        Case("resnet18", "cifar100", 32),
        Case("resnet18-imagenet", f"folder:{root / LARGE_IMAGES}", 224, share=4),
    ]


def load(case: Case, root: Path) -> ImageDataset[Any]:
    """Load the images of a case, or the shipped ones if they were not found."""
    try:
        return load_dataset(case.dataset, root, image_size=case.image_size)
    except MissingDataError:
        print(f"note: {case.dataset} was not found; {case.model} sees {FALLBACK}, padded to {case.image_size} pixels")
        return load_dataset(FALLBACK, root, image_size=case.image_size)


def endless(dataset: ImageDataset[Any], batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    for epoch in itertools.count():
        yield from train_batches(dataset, batch_size, seed=0, epoch=epoch, augmentation=dataset.augmentation)


def train(model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]], steps: int) -> float:
    """Train with SGD and a cosine schedule; return the mean loss of the last tenth."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    model.train()
    for images, labels in itertools.islice(batches, steps):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return float(np.mean(losses[-max(1, steps // 10) :]))


def differences(model: nn.Module, images: Tensor, drop_near: bool) -> list[Difference]:
    """Compare G of every k×k convolution; its input is measured as it passes by."""
    found: list[Difference] = []

    def compare(name: str, conv: nn.Conv2d, maps: Tensor) -> None:
        ours = scaling_from_dependence(
            normalized_mutual_information(maps, conv.kernel_size, padding=conv.padding, drop_near=drop_near)
        )
        S = published_dependence(maps.numpy(), conv.kernel_size, conv.padding, drop_near=drop_near)  # type: ignore[arg-type]
        gap = np.abs(ours.numpy() - published_scaling(S))
        found.append(Difference(name, tuple(maps.shape[2:]), float(gap.max()), float(gap.mean())))  # type: ignore[arg-type]

    convs = {name: conv for name, conv in named_convolutions(model).items() if max(conv.kernel_size) > 1}
    handles = [
        conv.register_forward_pre_hook(lambda conv, args, name=name: compare(name, conv, args[0]))
        for name, conv in convs.items()
    ]
    with torch.no_grad():
        model.eval()(images)
    for handle in handles:
        handle.remove()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="folder of the data sets (default: $SPATIALGRAD_DATA)")
    parser.add_argument("--network", help="measure only this one of the networks")
    parser.add_argument("--width", type=float, default=0.125, help="factor on their channels (default: 0.125)")
    parser.add_argument("--steps", type=int, default=200, help="training steps (default: 200)")
    parser.add_argument("--batch-size", type=int, default=64, help="images per step; a quarter at 224 px (default: 64)")
    parser.add_argument("--images", type=int, default=256, help="images measured; a quarter at 224 px (default: 256)")
    args = parser.parse_args()
    root = data_root(args.root)
    print(
        f"width {args.width:g}, {args.steps} steps of {args.batch_size} images, measured on {args.images} "
        f"(a quarter of both at 224 pixels); seed 0, torch {torch.__version__}, numpy {np.__version__}, "
        f"{platform.machine()}"
    )
    chosen = [(case, load(case, root)) for case in cases(root) if args.network in (None, case.model)]
    print("\n| network | images | training loss | drop_near | largest difference | mean | worst layer, its map |")
    print("|---|---|---|---|---|---|---|")
    for case, dataset in chosen:
        torch.manual_seed(0)
        model = create_model(
            case.model, num_classes=dataset.num_classes, width=args.width, in_channels=dataset.channels
        )
        loss = train(model, endless(dataset, max(1, args.batch_size // case.share)), args.steps)
        number = max(1, args.images // case.share)
        images = next(iter(train_batches(dataset, number, seed=1, epoch=0)))[0]
        for drop_near in (False, True):
            found = differences(model, images, drop_near)
            worst = max(found, key=lambda item: item.largest)
            height, width = worst.size
            print(
                f"| {case.model} | {dataset.description}, {case.image_size} px | {loss:.2f} | "
                f"{'yes' if drop_near else 'no'} | {worst.largest:.4f} | "
                f"{np.mean([item.mean for item in found]):.4f} | {worst.layer}, {height}×{width} |",
                flush=True,
            )


if __name__ == "__main__":
    # A layer without any information has no mean over channels in the published formulation, either.
    warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)
    main()
