"""The measure as the paper's authors implemented it, written anew with numpy: the reference for speed and fidelity.

One histogram per channel and displacement. Pixels and neighbours each have their own range, from the values that take
part; Sturges' rule counts the pairs that take part. Maps are padded with zeros first.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
Range = tuple[float, float]
JointHistogram = Callable[[Array, Array, int, tuple[Range, Range]], Array]


def joint_histogram(p: Array, q: Array, bins: int, ranges: tuple[Range, Range]) -> Array:
    """Count pairs with numpy, whose last bin includes the upper limit."""
    # A range of one value would be centred on it; the published code puts that value into the first bin.
    limits = [(low, high if high > low else low + 1) for low, high in ranges]
    return np.histogram2d(p, q, bins=bins, range=limits)[0]


def published_dependence(
    maps: Array,
    kernel_size: tuple[int, int],
    padding: tuple[int, int] = (0, 0),
    *,
    drop_near: bool = False,
    mirror: bool = True,
    histogram: JointHistogram = joint_histogram,
) -> NDArray[np.float64]:
    """Measure S.

    Args:
        maps: Input maps, shape (batch, channels, height, width).
        kernel_size: Odd height and width.
        padding: Rows and columns of zeros on each side.
        drop_near: Leave out pairs with an exact zero, then the diagonal of the histogram; what cannot be measured is 0.
        mirror: Count only one of (i, j) and (−i, −j), as the authors do.
        histogram: Counts the pairs.

    Returns:
        Shape (channels, *kernel_size). Without `drop_near`, what cannot be measured is NaN.
    """
    padded = np.pad(maps, ((0, 0), (0, 0), *((pad, pad) for pad in padding)))
    S = np.ones((padded.shape[1], *kernel_size))
    centre = tuple(side // 2 for side in kernel_size)
    for channel, i, j in np.ndindex(*S.shape):
        offset = (i - centre[0], j - centre[1])
        if offset == (0, 0):
            continue
        if mirror and offset > (0, 0):
            S[channel, i, j] = S[channel, kernel_size[0] - 1 - i, kernel_size[1] - 1 - j]
            continue
        p, q = _pairs(padded[:, channel], offset)
        if drop_near:
            taking_part = (p != 0) & (q != 0)
            p, q = p[taking_part], q[taking_part]
        value = _normalized_mutual_information(p, q, drop_near, histogram) if p.size else math.nan
        S[channel, i, j] = 0.0 if drop_near and math.isnan(value) else value
    return S


def published_scaling(dependence: NDArray[np.float64], k: float = 5.0) -> NDArray[np.float64]:
    """Turn S into G: the k-transform per channel, the mean over what is not NaN, division by the mean."""
    transformed = k * dependence / ((k - 1) * dependence + 1)
    mean = np.nanmean(transformed, axis=0)
    return mean / mean.mean()


def _pairs(pixels: Array, offset: tuple[int, int]) -> tuple[Array, Array]:
    """Return all pixels that have a neighbour at `offset`, and those neighbours."""
    here, there = [slice(None)], [slice(None)]
    for side, step in zip(pixels.shape[1:], offset, strict=True):
        here.append(slice(max(0, -step), side - max(0, step)))
        there.append(slice(max(0, step), side - max(0, -step)))
    return pixels[tuple(here)].ravel(), pixels[tuple(there)].ravel()


def _normalized_mutual_information(p: Array, q: Array, drop_near: bool, histogram: JointHistogram) -> float:
    bins = 1 + math.ceil(math.log2(p.size))
    joint = histogram(p, q, bins, ((p.min(), p.max()), (q.min(), q.max())))
    if drop_near:
        np.fill_diagonal(joint, 0)
    joint_entropy = _entropy(joint)
    if joint_entropy == 0:
        return math.nan
    return (_entropy(joint.sum(0)) + _entropy(joint.sum(1)) - joint_entropy) / joint_entropy


def _entropy(counts: Array) -> float:
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log(p)).sum())
