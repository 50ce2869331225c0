"""Scalings G: from a measured dependence S, from ratios and from branch masks, and back to branches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
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
    scaling, low, high = scaling_and_range(dependence, k)
    check_range(*torch.stack([low, high]).tolist())
    return scaling


def scaling_and_range(dependence: Tensor, k: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return G, and the smallest and largest S of its channels for `check_range`, without waiting for the device."""
    usable = informative_channels(dependence)
    S = torch.where(_like(usable, dependence), dependence, 0.0)
    low, high = S.min(), S.max()
    S = S.clamp(0, 1)
    measured = _with_mean_one(k_transform(S, k).sum(0) / usable.sum())
    # The maximum is small, too, if no channel is usable.
    return torch.where(S.max() <= NO_DEPENDENCE, torch.ones_like(measured), measured), low, high


def k_transform(S: Tensor, k: float) -> Tensor:
    """Return k·S / ((k − 1)·S + 1), which is finite for every k > 0 and every S in [0, 1]."""
    k = min(max(k, 1 / LARGEST_K), LARGEST_K)
    # The same fraction, reduced by k: for S = 1 and a tiny k, the other denominator cancels to 0.
    return k * S / ((k - 1) * S + 1) if k >= 1 else S / (S + (1 - S) / k)


def mean_dependence(dependence: Tensor) -> Tensor:
    """Average S over the channels that carry information.

    Args:
        dependence: S of shape (channels, *kernel_size); channels with a NaN carry no information and are left out.

    Returns:
        Shape kernel_size; NaN if no channel carries information.
    """
    usable = informative_channels(dependence)
    return torch.where(_like(usable, dependence), dependence, 0.0).sum(0) / usable.sum()


def informative_channels(dependence: Tensor) -> Tensor:
    """Return which channels of S carry information: shape (channels,), bool."""
    return ~dependence.flatten(1).isnan().any(1)


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
    return _with_mean_one(
        torch.tensor([[corner, edge, corner], [edge, 1.0, edge], [corner, edge, corner]], dtype=torch.float64)
    )


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


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A scaling as a sum of weighted receptive fields: the branched block that it corresponds to."""

    weights: dict[tuple[int, ...], float]
    """Positive weights by the size of the centred receptive field, largest first."""
    fit: Tensor
    """The sum of the weighted masks."""
    residual: Tensor
    """G − fit."""

    @property
    def relative_residual(self) -> float:
        """Norm of the residual relative to the norm of G."""
        size = float((self.fit + self.residual).norm())
        return float(self.residual.norm()) / size if size else 0.0

    def __str__(self) -> str:
        terms = [f"{weight:.3f}·[{'×'.join(map(str, size))}]" for size, weight in self.weights.items()]
        return f"{' + '.join(terms) or '0'}  (residual {self.relative_residual:.1%})"


def explain(scaling: Tensor) -> Explanation:
    """Find the branched block that a scaling corresponds to.

    The receptive fields are all centred rectangles (1×1, 1×3, 3×1, 3×3, …; with even sides for an even kernel). Their
    weights are the non-negative least-squares solution of G = Σ weight · mask.

    Args:
        scaling: G of shape kernel_size.

    Example:
        >>> import torch
        >>> full, row = torch.ones(3, 3), torch.tensor([[0, 0, 0], [1, 1, 1], [0, 0, 0]])
        >>> print(explain(scaling_from_masks([full, full, row], normalize=False)))
        2.000·[3×3] + 1.000·[1×3]  (residual 0.0%)
    """
    target = scaling.detach().to("cpu", torch.float64)
    if not bool(target.isfinite().all()):
        raise ValueError(f"The scaling holds NaN or infinite values:\n{target}")
    sizes = list(itertools.product(*(range(2 - side % 2, side + 1, 2) for side in target.shape)))
    masks = torch.stack([_centred_mask(size, target.shape) for size in sizes])
    weights = _nonnegative_least_squares(masks.flatten(1).T.numpy(), target.flatten().numpy())
    fit = torch.einsum("n,n...->...", torch.from_numpy(weights), masks)
    found = {size: float(weight) for size, weight in zip(sizes, weights, strict=True) if weight > 0}
    ordered = dict(sorted(found.items(), key=lambda item: -item[1]))
    return Explanation(weights=ordered, fit=fit, residual=target - fit)


def check_k(k: float) -> None:
    """Raise `ValueError` unless `k` can be used in the k-transform."""
    if not (math.isfinite(k) and k > 0):
        raise ValueError(f"Invalid k: {k}; it must be a positive number (the paper's default is 5).")


def check_shape(what: str, matrix: Tensor, kernel_size: tuple[int, ...]) -> None:
    """Raise `ValueError` unless `matrix` has one value per position of a kernel."""
    if not isinstance(matrix, Tensor) or tuple(matrix.shape) != kernel_size:
        got = f"shape {tuple(matrix.shape)}" if isinstance(matrix, Tensor) else f"type {type(matrix).__name__}"
        raise ValueError(f"{what} has {got}; its kernel needs shape {kernel_size}.")


def check_scaling(name: str, scaling: Tensor, kernel_size: tuple[int, ...]) -> None:
    """Raise `ValueError` unless `scaling` can multiply the kernel of the convolution `name`."""
    check_shape(f"The scaling of {name!r}", scaling, kernel_size)
    if not bool(scaling.isfinite().all()) or bool((scaling < 0).any()):
        raise ValueError(f"The scaling of {name!r} must be finite and non-negative, got\n{scaling}")


def check_range(low: float, high: float) -> None:
    """Raise `ValueError` unless values of S from `low` to `high` lie between 0 and 1."""
    if not (low >= -ROUNDING and high <= 1 + ROUNDING):
        raise ValueError(f"S must lie between 0 and 1, got values from {low:.6g} to {high:.6g}.")


def check_measured(smallest: float, mean: float) -> None:
    """Raise `ValueError` unless a measured scaling is finite, strictly positive and has mean 1."""
    if not (smallest > 0 and math.isclose(mean, 1, abs_tol=1e-4)):
        raise ValueError(f"a measured scaling must be positive with mean 1, got minimum {smallest} and mean {mean}")


def _like(per_channel: Tensor, values: Tensor) -> Tensor:
    return per_channel.view(-1, *(1,) * (values.dim() - 1))


def _with_mean_one(scaling: Tensor) -> Tensor:
    scaling = (scaling / scaling.mean()).clamp(min=SMALLEST)
    return scaling / scaling.mean()


def _centred_mask(size: tuple[int, ...], kernel_size: tuple[int, ...]) -> Tensor:
    mask = torch.zeros(kernel_size, dtype=torch.float64)
    inner = [slice((k - s) // 2, (k + s) // 2) for s, k in zip(size, kernel_size, strict=True)]
    mask[tuple(inner)] = 1
    return mask


def _nonnegative_least_squares(A: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """The active-set method of Lawson and Hanson; the problems here have a handful of unknowns."""
    x = np.zeros(A.shape[1])
    free = np.zeros(A.shape[1], dtype=bool)
    tolerance = 1e-12 * max(1.0, float(np.abs(A.T @ b).max()))
    for _ in range(3 * A.shape[1]):
        gradient = A.T @ (b - A @ x)
        if free.all() or gradient[~free].max() <= tolerance:
            break
        free[np.argmax(np.where(free, -np.inf, gradient))] = True
        while True:
            trial = np.zeros_like(x)
            trial[free] = np.linalg.lstsq(A[:, free], b, rcond=None)[0]
            if (trial[free] > 0).all():
                break
            # Walk towards the trial until the first unknown reaches its bound, and fix it there.
            blocking = free & (trial <= 0)
            step = np.min(x[blocking] / (x[blocking] - trial[blocking]))
            x = x + step * (trial - x)
            free &= x > tolerance
        x = trial
    return x
