"""Seeded, stratified splits: the paper searches on 20 % of the training set, held out."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from spatialgrad.data.classification import ImageDataset, S
from spatialgrad.data.rng import generator_for


def stratified_indices(labels: Tensor, fraction: float, *, seed: int) -> tuple[Tensor, Tensor]:
    """Part images so that every class gives the same share of its own.

    Args:
        labels: Shape (number,), int64.
        fraction: Share that is held out, within (0, 1).
        seed: Decides which images are held out.

    Returns:
        Indices that stay and indices that are held out, both ascending. `round(fraction * number)` are held
        out, and from each class its exact share, rounded up or down.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must be between 0 and 1, got {fraction}")
    labels = labels.cpu()
    exact = torch.bincount(labels).double() * fraction
    counts = exact.floor().long()
    # Largest remainders first, so that the total is right; `stable` makes ties go to the first class.
    missing = round(fraction * len(labels)) - int(counts.sum())
    counts[torch.argsort(exact - counts, descending=True, stable=True)[:missing]] += 1
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label, count in enumerate(counts.tolist()):
        members = torch.nonzero(labels == label).flatten()
        chosen = torch.randperm(len(members), generator=generator_for("split", seed, label))[:count]
        held_out[members[chosen]] = True
    return torch.nonzero(~held_out).flatten(), torch.nonzero(held_out).flatten()


def random_indices(count: int, wanted: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Part images that have no class by chance.

    Args:
        count: Number of images.
        wanted: How many are held out.
        seed: Decides which.

    Returns:
        Indices that stay and indices that are held out, both ascending.
    """
    if not 0 < wanted < count:
        raise ValueError(f"{wanted} of {count} images cannot be held out: some must be on both sides")
    order = torch.randperm(count, generator=generator_for("random split", seed))
    return order[wanted:].sort().values, order[:wanted].sort().values


def validation_split(dataset: ImageDataset[S], fraction: float = 0.2, *, seed: int = 0) -> ImageDataset[S]:
    """Make a search's data set: train on one part of the training images and test on the other.

    The real test images are not in it, so that no choice can be made on them by mistake.
    """
    stay, held_out = stratified_indices(dataset.train.labels, fraction, seed=seed)
    return replace(
        dataset,
        description=f"{dataset.description}, {fraction:.0%} of the training images held out (seed {seed})",
        train=dataset.train.select(stay),
        test=dataset.train.select(held_out),
    )
