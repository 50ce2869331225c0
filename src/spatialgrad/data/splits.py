"""Seeded splits of the training images: the paper's searches hold out 20 % of them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from spatialgrad.data.classification import ImageDataset, S
from spatialgrad.data.rng import generator_for


def stratified_indices(labels: Tensor, fraction: float, *, seed: int) -> tuple[Tensor, Tensor]:
    """Hold out the same fraction of every class.

    Args:
        labels: Shape (number,), int64.
        fraction: Fraction to hold out, within (0, 1).
        seed: Determines which images are held out.

    Returns:
        Indices that are kept and indices that are held out, both ascending. `round(fraction * number)` are held out:
        from each class its exact share, rounded up or down.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must be between 0 and 1, got {fraction}")
    labels = labels.cpu()
    exact = torch.bincount(labels).double() * fraction
    counts = exact.floor().long()
    # Round up the largest remainders, so that the total is right; with `stable`, the first class wins ties.
    missing = round(fraction * len(labels)) - int(counts.sum())
    counts[torch.argsort(exact - counts, descending=True, stable=True)[:missing]] += 1
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label, count in enumerate(counts.tolist()):
        members = torch.nonzero(labels == label).flatten()
        chosen = torch.randperm(len(members), generator=generator_for("split", seed, label))[:count]
        held_out[members[chosen]] = True
    return torch.nonzero(~held_out).flatten(), torch.nonzero(held_out).flatten()


def random_indices(count: int, wanted: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Hold out images at random, where they have no class.

    Args:
        count: Number of images.
        wanted: Number of images to hold out.
        seed: Determines which images are held out.

    Returns:
        Indices that are kept and indices that are held out, both ascending.
    """
    if not 0 < wanted < count:
        raise ValueError(f"cannot hold out {wanted} of {count} images: neither part may be empty")
    order = torch.randperm(count, generator=generator_for("random split", seed))
    return order[wanted:].sort().values, order[:wanted].sort().values


def validation_split(dataset: ImageDataset[S], fraction: float = 0.2, *, seed: int = 0) -> ImageDataset[S]:
    """A data set for a search: one part of the training images to train on, the other to test on.

    It does not contain the real test images, so that no choice can be based on them by mistake.
    """
    kept, held_out = stratified_indices(dataset.train.labels, fraction, seed=seed)
    return replace(
        dataset,
        description=f"{dataset.description}, {fraction:.0%} of the training images held out (seed {seed})",
        train=dataset.train.select(kept),
        test=dataset.train.select(held_out),
    )
