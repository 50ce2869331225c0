"""Statistics over seeds: mean and deviation, and paired differences from a reference with their uncertainty.

SciPy takes a second to import, and who only formats numbers does without it: it is imported when a test is made.
"""

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
    n, mean = len(values), math.fsum(values) / len(values)
    # Not statistics.stdev, which is exact and fifty times as slow: learning curves have very many points.
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1)) if n > 1 else None
    return Summary(n=n, mean=mean, std=std)


def compare_paired(values: Mapping[int, float], reference: Mapping[int, float]) -> Comparison | None:
    """Compare values with those of a reference, paired by seed.

    Args:
        values: By seed.
        reference: By seed; only common seeds count.

    Returns:
        None if there is no common seed. If the differences do not vary, there is no test, and a note says why.
    """
    from scipy.stats import ttest_rel

    seeds = sorted(values.keys() & reference.keys())
    ours, theirs = ([each[seed] for seed in seeds] for each in (values, reference))
    summary = summarize([a - b for a, b in zip(ours, theirs, strict=True)])
    if summary is None:
        return None
    if summary.std is None:
        return Comparison(n=1, difference=summary.mean, note="one pair: no test")
    # Differences that are equal as decimal numbers may differ in their last bits.
    if summary.std <= 1e-12 * max(map(abs, (*ours, *theirs))):
        return Comparison(n=summary.n, difference=summary.mean, note="equal in all pairs: no test")
    test = ttest_rel(ours, theirs)
    low, high = map(float, test.confidence_interval(CONFIDENCE))
    return Comparison(n=summary.n, difference=summary.mean, low=low, high=high, p=float(test.pvalue))


def correct(comparisons: Sequence[Comparison | None], pending: int = 0) -> list[Comparison | None]:
    """Comparisons with p values corrected by Holm's method.

    Args:
        comparisons: The family of comparisons.
        pending: Number of further comparisons whose runs have not finished. They count as p = 1, so that the report of
            an unfinished study claims no more than the final one.
    """
    tested = [each for each in comparisons if each is not None and each.p is not None]
    corrected = iter(holm([each.p for each in tested if each.p is not None], pending))
    return [each if each is None or each.p is None else replace(each, holm=next(corrected)) for each in comparisons]


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
    from scipy.stats import pearsonr

    varies = len(xs) >= LEAST_PAIRS and _vary(xs) and _vary(ys)
    return float(pearsonr(xs, ys).statistic) if varies else None


def rank_correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None for fewer than three pairs, or if either does not vary."""
    from scipy.stats import spearmanr

    varies = len(xs) >= LEAST_PAIRS and _vary(xs) and _vary(ys)
    return float(spearmanr(xs, ys).statistic) if varies else None


def _vary(values: Sequence[float]) -> bool:
    """Whether values differ by more than rounding."""
    return max(values) - min(values) > 1e-9 * max(map(abs, values))
