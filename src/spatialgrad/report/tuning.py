"""What a search over k has found, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spatialgrad.report.statistics import Comparison, Summary, compare_paired, correct, summarize
from spatialgrad.report.tables.cells import signed, spread

SMALL = 1.0
"""Points: an interval that reaches further leaves open whether k matters."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A k that was trained with several seeds."""

    k: float
    summary: Summary
    """Of the held-out metric, in per cent."""
    over_reference: Comparison | None
    """Its difference from the reference; None for the reference itself."""
    below_best: Comparison | None
    """Its difference from the best k; None for the best itself."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer of a search."""

    reference: float
    best: Candidate
    candidates: tuple[Candidate, ...]
    """Ascending in k."""

    @property
    def is_clear(self) -> bool:
        """Whether the best k is significantly better than the reference."""
        return self.best.over_reference is not None and self.best.over_reference.better

    @property
    def recommended(self) -> float:
        """The k to use: the reference, unless another one is clearly better."""
        return self.best.k if self.is_clear else self.reference

    @property
    def equals(self) -> tuple[float, ...]:
        """The other values that cannot be told from the best."""
        return tuple(
            each.k for each in self.candidates if each.below_best is not None and not excludes_zero(each.below_best)
        )


def judge(values: Mapping[float, Mapping[int, float]], reference: float) -> Verdict | None:
    """Compare values of k with each other and with a reference, seed by seed.

    Args:
        values: The metric in per cent by seed, for each k.
        reference: One of them.

    Returns:
        None as long as a k has no values. The comparisons with the reference are corrected for their number, as the
        best of them was chosen by its values.
    """
    summaries = {k: summarize(list(by_seed.values())) for k, by_seed in sorted(values.items())}
    known = {k: summary for k, summary in summaries.items() if summary is not None}
    if len(known) < len(summaries) or reference not in known:
        return None
    best = max(known, key=lambda k: (known[k].mean, k == reference))
    others = [k for k in known if k != reference]
    over = dict(zip(others, correct([compare_paired(values[k], values[reference]) for k in others]), strict=True))
    candidates = tuple(
        Candidate(
            k=k,
            summary=summary,
            over_reference=over.get(k),
            below_best=None if k == best else compare_paired(values[k], values[best]),
        )
        for k, summary in known.items()
    )
    found = next(each for each in candidates if each.k == best)
    return Verdict(reference=reference, best=found, candidates=candidates)


def explain_verdict(verdict: Verdict, metric: str) -> str:
    """The answer in words.

    Args:
        verdict: Of the search.
        metric: Name of the metric.
    """
    best, default, equals = verdict.best, f"k = {verdict.reference:g}", verdict.equals
    lines = [f"Best k: {best.k:g}, held-out {metric} {spread(best.summary)} % ({best.summary.n} seeds)."]
    if equals:
        lines.append(f"Indistinguishable from it: k = {', '.join(f'{k:g}' for k in equals)}.")
    over, worse = best.over_reference, [each for each in verdict.candidates if each.k not in (best.k, *equals)]
    if over is not None and over.better:
        lines.append(f"It is better than {default} by {described(over)}.")
    elif over is not None and excludes_zero(over):
        lines.append(
            f"Its difference from {default} is {described(over)}: too few seeds for the number of comparisons. Keep "
            f"{default}, or repeat the command with more --seeds."
        )
    elif over is not None and not is_narrow(over):
        lines.append(
            f"Its difference from {default} is {described(over)}: {over.n} seeds leave open whether k matters. Keep "
            f"{default}, or repeat the command with more --seeds."
        )
    elif over is not None:
        lines.append(f"k hardly matters here: the difference from {default} is {described(over)}. Keep {default}.")
    elif not worse:
        narrow = all(each.over_reference is None or is_narrow(each.over_reference) for each in verdict.candidates)
        begin = "k hardly matters here: none" if narrow else "None"
        lines.append(f"{begin} of the others differs clearly from {default}. Keep {default}.")
    else:
        among = " Among the others, k hardly matters." if equals else ""
        lines.append(f"Worse: k = {', '.join(f'{each.k:g}' for each in worse)}.{among} Keep {default}.")
    return "\n".join(lines)


def is_narrow(comparison: Comparison) -> bool:
    """Whether the whole interval is within a small distance of 0."""
    return comparison.low is not None and comparison.high is not None and max(-comparison.low, comparison.high) <= SMALL


def described(comparison: Comparison) -> str:
    """A difference with its interval: "+0.31 points [95 % CI −0.20, +0.82]"."""
    if comparison.low is None or comparison.high is None:
        return f"{signed(comparison.difference)} points ({comparison.note})"
    return f"{signed(comparison.difference)} points [95 % CI {signed(comparison.low)}, {signed(comparison.high)}]"


def excludes_zero(comparison: Comparison) -> bool:
    """Whether the interval of a difference does not contain 0."""
    if comparison.low is None or comparison.high is None:  # equal in all pairs, or one pair
        return comparison.n > 1 and comparison.difference != 0
    return comparison.low > 0 or comparison.high < 0
