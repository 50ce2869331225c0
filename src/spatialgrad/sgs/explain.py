"""Explain a scaling G as a sum of weighted receptive fields: the branched block that it corresponds to."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


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
        >>> from spatialgrad import scaling_from_masks
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


def _centred_mask(size: tuple[int, ...], kernel_size: tuple[int, ...]) -> Tensor:
    mask = torch.zeros(kernel_size, dtype=torch.float64, device="cpu")
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
