"""Scalings G: from a measured dependence S, from ratios, and from the masks of branches."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

# A scaling of exactly 0 would freeze a kernel position forever.
SMALLEST = 1e-6
# Beyond these limits, k and the ratios no longer change G, but would overflow in single precision.
LARGEST_K = LARGEST_RATIO = 1e30
# The largest S that counts as no dependence: ratios of smaller values would be ratios of rounding errors.
NO_DEPENDENCE = 1e-9
# How far a measure in single precision may exceed the limits of S.
ROUNDING = 1e-4


def scaling_from_dependence(dependence: Tensor, k: float = 5.0) -> Tensor:
    """Turn a spatial dependence into a gradient scaling.

    Each channel's S becomes k·S / ((k − 1)·S + 1); the mean over channels is then divided by its own mean.

    Args:
        dependence: S of shape (channels, *kernel_size) with values in [0, 1]; channels with a NaN carry no
            information and are left out.
        k: Larger k flattens G; k = 1 uses S as it is.

    Returns:
        G of shape kernel_size, mean 1, strictly positive; all ones if no channel carries information, or if S is 0
        everywhere.

    Example:
        >>> import torch
        >>> scaling_from_dependence(torch.tensor([[0.1, 1.0, 0.1]]), k=5)
        tensor([0.6250, 1.7500, 0.6250])
    """
    check_k(k)
    if dependence.dim() < 2 or not dependence.is_floating_point():
        raise ValueError(
            f"Expected a floating point S of shape (channels, *kernel_size), got {dependence.dtype} "
            f"of shape {tuple(dependence.shape)}."
        )
    check_range(*dependence_limits(dependence))
    return scaling_and_mean(dependence, k)[0]


def scaling_and_mean(dependence: Tensor, k: float) -> tuple[Tensor, Tensor]:
    """Return G, and S averaged over the channels that carry information, without waiting for the device.

    The mean is NaN if no channel carries information; G is then all ones.
    """
    S, usable = _informative(dependence)
    number = usable.sum()
    G = _with_mean_one(k_transform(S.clamp(0, 1), k).sum(0) / number)
    # The maximum is small, too, if no channel is usable.
    G = torch.where(S.max() <= NO_DEPENDENCE, torch.ones_like(G), G)
    return G.view(dependence.shape[1:]), (S.sum(0) / number).view(dependence.shape[1:])


def dependence_limits(dependence: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest S of the channels that carry information; 0 if there is none."""
    return torch.aminmax(_informative(dependence)[0])


def k_transform(S: Tensor, k: float) -> Tensor:
    """Return k·S / ((k − 1)·S + 1), which is finite for every k > 0 and every S in [0, 1]."""
    k = min(max(k, 1 / LARGEST_K), LARGEST_K)
    # The same fraction, reduced by k: for S = 1 and a tiny k, the other denominator cancels to 0.
    return k * S / ((k - 1) * S + 1) if k >= 1 else S / (S + (1 - S) / k)


def scaling_from_ratios(alpha: float, beta: float) -> Tensor:
    """Return the 3×3 scaling of the paper's grid search.

    Args:
        alpha: Ratio of the centre to the four edges.
        beta: Ratio of the centre to the four corners.

    Returns:
        G of shape (3, 3), mean 1.

    Example:
        >>> scaling_from_ratios(alpha=2, beta=4)
        tensor([[0.5625, 1.1250, 0.5625],
                [1.1250, 2.2500, 1.1250],
                [0.5625, 1.1250, 0.5625]], dtype=torch.float64)
    """
    for name, ratio in (("alpha", alpha), ("beta", beta)):
        if not 1 / LARGEST_RATIO <= ratio <= LARGEST_RATIO:
            raise ValueError(
                f"Invalid {name}: {ratio}; it must lie between {1 / LARGEST_RATIO:g} and {LARGEST_RATIO:g}."
            )
    edge, corner = 1 / alpha, 1 / beta
    rows = [[corner, edge, corner], [edge, 1.0, edge], [corner, edge, corner]]
    return _with_mean_one(torch.tensor(rows, dtype=torch.float64, device="cpu"))


def scaling_from_masks(masks: Tensor | Iterable[Tensor], normalize: bool = True) -> Tensor:
    """Return the scaling with which one convolution learns like a sum of masked branches (the paper's Lemma).

    Args:
        masks: Binary receptive fields, each of shape kernel_size.
        normalize: Divide by the mean, as for every other scaling. The Lemma's own G, for which the branches' learning
            rate stays the same, is the plain sum: ``normalize=False``.

    Returns:
        G of shape kernel_size.

    Example:
        >>> import torch
        >>> full, centre = torch.ones(1, 3), torch.tensor([[0, 1, 0]])
        >>> scaling_from_masks([full, centre], normalize=False)
        tensor([[1., 2., 1.]], dtype=torch.float64)
        >>> scaling_from_masks([full, centre])
        tensor([[0.7500, 1.5000, 0.7500]], dtype=torch.float64)
    """
    stacked = torch.stack([torch.as_tensor(mask) for mask in masks]).to(torch.float64)
    if not bool(((stacked == 0) | (stacked == 1)).all()):
        raise ValueError("Masks must hold only 0 and 1.")
    total = stacked.sum(0)
    if not normalize:
        return total
    if not bool((total > 0).all()):
        raise ValueError(
            f"The masks leave some positions uncovered; they sum to\n{total}\nA normalized scaling must be strictly "
            "positive: add a full receptive field, or use normalize=False."
        )
    return _with_mean_one(total)


def check_k(k: float) -> None:
    """Raise `ValueError` unless `k` can be used in the k-transform."""
    valid = isinstance(k, int | float) and not isinstance(k, bool)
    if not (valid and math.isfinite(k) and k > 0):
        raise ValueError(f"Invalid k: {k!r}; it must be a positive number (the paper's default is 5).")


def check_range(low: Tensor | float, high: Tensor | float) -> None:
    """Raise `ValueError` unless values of S from `low` to `high` lie between 0 and 1."""
    if not (low >= -ROUNDING and high <= 1 + ROUNDING):
        raise ValueError(f"S must lie between 0 and 1, got values from {float(low):.6g} to {float(high):.6g}.")


def _informative(dependence: Tensor) -> tuple[Tensor, Tensor]:
    """Return S as (channels, positions), with zeros for channels without information, and which channels have some."""
    S = dependence.flatten(1)
    usable = ~S.isnan().any(1, keepdim=True)
    return torch.where(usable, S, 0.0), usable


def _with_mean_one(scaling: Tensor) -> Tensor:
    scaling = (scaling / scaling.mean()).clamp(min=SMALLEST)
    return scaling / scaling.mean()
