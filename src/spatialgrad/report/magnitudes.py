"""The average kernel magnitude of a network's convolutions: how large its weights are, position by position."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from spatialgrad.sgs.layers import select_convolutions
from spatialgrad.train.errors import CheckpointError
from spatialgrad.train.runs.checkpoint import read_checkpoint
from spatialgrad.train.runs.folder import CHECKPOINT, PREVIOUS_CHECKPOINT


def kernel_magnitudes(model: nn.Module) -> dict[str, list[list[float]]]:
    """The average kernel magnitude of every convolution that can be scaled, by qualified name."""
    chosen, _ = select_convolutions(model)
    return {name: kernel_magnitude(convs[0].weight).tolist() for name, convs in chosen.items()}


def kernel_magnitudes_of_run(folder: Path | str) -> dict[str, list[list[float]]]:
    """The same from the newest checkpoint of a run, which needs neither its data set nor its network.

    Only for networks that are trained as they are deployed: branches are not merged.

    Raises:
        CheckpointError: If the run has no checkpoint that can be read.
    """
    # Not load_checkpoint, which puts a damaged one aside: whoever only looks at a run leaves it as it is.
    there = [path for name in (CHECKPOINT, PREVIOUS_CHECKPOINT) if (path := Path(folder) / name).exists()]
    if not there:
        raise CheckpointError(f"{folder} holds no checkpoint yet")
    weights: Mapping[str, Tensor] = read_checkpoint(there[0])["model"]
    return {
        name.removesuffix(".weight"): kernel_magnitude(weight).tolist()
        for name, weight in weights.items()
        if name.endswith(".weight") and weight.dim() == 4 and weight[0, 0].numel() > 1
    }


def kernel_magnitude(weight: Tensor) -> Tensor:
    """The mean of |W| over output and input channels, divided by its own mean.

    Args:
        weight: Of a convolution: (output channels, input channels, *kernel size).

    Returns:
        One number per position, with mean 1; all 1 for a kernel of zeros.
    """
    magnitude = weight.detach().double().abs().mean(dim=(0, 1))
    mean = magnitude.mean()
    return magnitude / mean if mean > 0 else magnitude + 1
