"""Statistics over seeds: mean and deviation, and paired differences from a reference with their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

CONFIDENCE = 0.95
SIGNIFICANCE = 0.05
LEAST_PAIRS = 3
"""Smallest number of pairs for which a difference is marked."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Mean and deviation over seeds."""

    n: int
    mean: float
    std: float | None
    """Sample standard deviation (n − 1); None for a single seed."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Paired differences from a reference, seed by seed."""

    n: int
    """Number of common seeds."""
    difference: float
    """Mean difference."""
    low: float | None = None
    """Lower end of the 95 % confidence interval of the mean difference."""
    high: float | None = None
    p: float | None = None
    """Two-sided p value of the paired t test."""
    holm: float | None = None
    """p after Holm's correction for all comparisons of the study."""
    note: str = ""
    """Why there is no test."""

    @property
    def supported(self) -> bool:
        """Whether the difference is significant: enough pairs, an interval without 0 and a corrected p below 0.05."""
        if self.n < LEAST_PAIRS or self.low is None or self.high is None or self.holm is None:
            return False
        return (self.low > 0 or self.high < 0) and self.holm < SIGNIFICANCE

    @property
    def better(self) -> bool:
        """Whether the values are significantly larger than the reference's."""
        return self.supported and self.difference > 0

    @property
    def worse(self) -> bool:
        """Whether the values are significantly smaller than the reference's."""
        return self.supported and self.difference < 0


def summarize(values: Sequence[float]) -> Summary | None:
    """Mean and standard deviation, or None without values."""
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Summary(n=1, mean=mean, std=None)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return Summary(n=len(values), mean=mean, std=math.sqrt(variance))


def compare_paired(values: Mapping[int, float], reference: Mapping[int, float]) -> Comparison | None:
    """Compare values with those of a reference, paired by seed.

    Args:
        values: By seed.
        reference: By seed; only common seeds count.

    Returns:
        None if there is no common seed. If the differences do not vary, there is no test, and a note says why.
    """
    seeds = sorted(values.keys() & reference.keys())
    differences = [values[seed] - reference[seed] for seed in seeds]
    summary = summarize(differences)
    if summary is None:
        return None
    if summary.std is None:
        return Comparison(n=1, difference=summary.mean, note="one pair: no test")
    # Differences that are equal as decimal numbers may differ in their last bits.
    size = max(abs(number) for seed in seeds for number in (values[seed], reference[seed]))
    if summary.std <= 1e-12 * size:
        return Comparison(n=summary.n, difference=summary.mean, note="equal in all pairs: no test")
    error, freedom = summary.std / math.sqrt(summary.n), summary.n - 1
    half = student_quantile(CONFIDENCE, freedom) * error
    return Comparison(
        n=summary.n,
        difference=summary.mean,
        low=summary.mean - half,
        high=summary.mean + half,
        p=1 - student_probability(summary.mean / error, freedom),
    )


def student_probability(t: float, freedom: int) -> float:
    """The probability that Student's t lies between −|t| and |t|.

    A finite sum in closed form (Abramowitz and Stegun 26.7.3 and 26.7.4), because SciPy takes a second to import.

    Args:
        t: The bound.
        freedom: Degrees of freedom, at least 1.
    """
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(1 if odd else 0, freedom - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    return min(1.0, 2 / math.pi * (angle + sine * total) if odd else sine * total)


def student_quantile(probability: float, freedom: int) -> float:
    """The t for which Student's t lies between −t and t with a probability."""
    low, high = 0.0, 1.0
    while student_probability(high, freedom) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_probability(middle, freedom) < probability else (low, middle)
    return high


def correct(comparisons: Sequence[Comparison | None], pending: int = 0) -> list[Comparison | None]:
    """Comparisons with p values corrected by Holm's method.

    Args:
        comparisons: The family of comparisons.
        pending: Number of further comparisons whose runs have not finished. They count as p = 1, so that the report of
            an unfinished study claims no more than the final one.
    """
    tested = [index for index, each in enumerate(comparisons) if each is not None and each.p is not None]
    corrected = list(comparisons)
    for index, value in zip(tested, holm([_p(comparisons[index]) for index in tested], pending), strict=True):
        each = comparisons[index]
        corrected[index] = None if each is None else replace(each, holm=value)
    return corrected


def holm(p_values: Sequence[float], pending: int = 0) -> list[float]:
    """Holm's step-down correction: the smallest p times their number, the next times one less, never decreasing.

    Args:
        p_values: In any order.
        pending: Number of further tests of the family, which count as p = 1.
    """
    number, largest = len(p_values) + pending, 0.0
    corrected = [0.0] * len(p_values)
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (number - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Pearson's correlation; None for fewer than three pairs, or if either does not vary."""
    if len(xs) < LEAST_PAIRS:
        return None
    x, y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    spreads = [math.hypot(*(value - mean for value in values)) for values, mean in ((xs, x), (ys, y))]
    sizes = [max(map(abs, values)) for values in (xs, ys)]
    if any(spread <= 1e-9 * size for spread, size in zip(spreads, sizes, strict=True)):  # equal but for rounding
        return None
    return math.fsum((a - x) / spreads[0] * ((b - y) / spreads[1]) for a, b in zip(xs, ys, strict=True))


def rank_correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None for fewer than three pairs, or if either does not vary."""
    return correlation(_ranks(xs), _ranks(ys))


def _ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value; equal values share the mean of their ranks."""
    ordered = sorted(values)
    first = {value: ordered.index(value) for value in ordered}
    return [first[value] + (ordered.count(value) - 1) / 2 for value in values]


def _p(comparison: Comparison | None) -> float:
    return 1.0 if comparison is None or comparison.p is None else comparison.p
