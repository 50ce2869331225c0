"""Controls: what a measured G is replaced by, to tell which of its properties trains a better network."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from spatialgrad.train.config import Control


def control_scalings(control: Control, scalings: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Replace measured scalings by those of a control; each has mean 1 as before.

    Args:
        control: none: as measured. shuffled: the same factors at other positions, with another one at the centre.
            neighbours-shuffled: the centre is kept. inverse: 1/G. shared: every layer has the mean over all layers
            with its kernel size.
        scalings: G by qualified name.
        seed: A layer's permutation depends on it and on the layer's name alone, so that every update uses the same.
    """
    if control == "none":
        return dict(scalings)
    if control == "inverse":
        return {name: (1 / G) / (1 / G).mean() for name, G in scalings.items()}
    if control == "shared":
        return {
            name: torch.stack([other for other in scalings.values() if other.shape == G.shape]).mean(0)
            for name, G in scalings.items()
        }
    return {
        name: G.flatten()[_permutation(G.shape, control == "shuffled", seed, name)].view_as(G)
        for name, G in scalings.items()
    }


def _permutation(shape: torch.Size, move_centre: bool, seed: int, name: str) -> Tensor:
    """A permutation of a kernel's positions that moves its centre, or keeps it."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    number = shape.numel()
    centre = number // 2
    if move_centre:
        while True:
            order = torch.randperm(number, generator=generator)
            if order[centre] != centre:
                return order
    neighbours = torch.tensor([position for position in range(number) if position != centre])
    order = torch.arange(number)
    order[neighbours] = neighbours[torch.randperm(number - 1, generator=generator)]
    return order
