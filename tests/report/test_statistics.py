"""The statistics against values worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spatialgrad.report.statistics import (  # fmt: skip
    Comparison,
    compare_paired,
    correct,
    correlation,
    holm,
    rank_correlation,
    summarize,
)


def test_mean_and_sample_deviation_by_hand():
    summary = summarize([70.0, 71.0, 75.0])
    assert (summary.n, summary.mean) == (3, pytest.approx(72.0))
    assert summary.std == pytest.approx(math.sqrt((4 + 1 + 9) / 2))
    assert (summarize([70.0]).n, summarize([70.0]).std) == (1, None)
    assert summarize([]) is None


def test_a_paired_comparison_by_hand():
    # Differences 1, 2, 3: mean 2, deviation 1, standard error 1/√3, t = 2√3 with 2 degrees of freedom.
    comparison = compare_paired({0: 71.0, 1: 72.0, 2: 76.0}, {0: 70.0, 1: 70.0, 2: 73.0})
    assert (comparison.n, comparison.difference) == (3, pytest.approx(2.0))
    # For 2 degrees of freedom both have a closed form: p = 1 − t/√(t²+2), and the 97.5 % point is 4.302652730.
    t = 2 * math.sqrt(3)
    assert comparison.p == pytest.approx(1 - t / math.sqrt(t * t + 2))
    assert comparison.low == pytest.approx(2 - 4.302652729911275 / math.sqrt(3))
    assert comparison.high == pytest.approx(2 + 4.302652729911275 / math.sqrt(3))


def test_only_common_seeds_count():
    comparison = compare_paired({0: 1.0, 1: 2.0, 5: 100.0}, {1: 1.0, 0: 0.5, 7: -100.0})
    assert (comparison.n, comparison.difference) == (2, pytest.approx(0.75))
    assert compare_paired({0: 1.0}, {1: 1.0}) is None


def test_one_pair_and_equal_differences_are_not_tested():
    single = compare_paired({0: 2.0}, {0: 1.0})
    assert (single.difference, single.low, single.p) == (1.0, None, None)
    assert "one pair" in single.note
    # 0.3 − 0.2 and 0.2 − 0.1 are not the same float.
    same = compare_paired({0: 0.3, 1: 0.2, 2: 5.1}, {0: 0.2, 1: 0.1, 2: 5.0})
    assert (same.p, same.supported) == (None, False)
    assert "equal" in same.note


def test_holm_by_hand():
    # Sorted: 0.005·4, 0.01·3 = 0.03, 0.03·2 = 0.06, 0.04·1 = 0.04, which may not fall below 0.06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    # Comparisons whose runs have not finished count as worse ones.
    assert holm([0.01, 0.2], pending=3) == pytest.approx([0.05, 0.8])
    assert holm([0.01, 0.2, 1.0, 1.0, 1.0])[:2] == pytest.approx([0.05, 0.8])


@given(st.lists(st.floats(min_value=0, max_value=1), min_size=1, max_size=8))
def test_holm_rejects_what_the_step_down_procedure_rejects(p_values):
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    rejected = set()
    for rank, index in enumerate(order):
        if p_values[index] > 0.05 / (len(p_values) - rank):
            break
        rejected.add(index)
    corrected = holm(p_values)
    # At the very threshold the last bit decides.
    if all(abs(p - 0.05) > 1e-9 for p in corrected):
        assert {index for index, p in enumerate(corrected) if p < 0.05} == rejected


def test_correction_skips_what_is_not_tested():
    tested = Comparison(n=3, difference=1.0, low=0.5, high=1.5, p=0.02)
    single = Comparison(n=1, difference=1.0)
    first, second, third, fourth = correct([tested, None, single, tested])
    assert [first.holm, fourth.holm] == pytest.approx([0.04, 0.04])
    assert (second, third.holm) == (None, None)


@pytest.mark.parametrize(
    ("changes", "better", "worse"),
    [
        ({}, True, False),
        ({"n": 2}, False, False),
        ({"holm": 0.08}, False, False),
        ({"low": -0.1}, False, False),
        ({"holm": None}, False, False),
        ({"difference": -1.0, "low": -1.5, "high": -0.5}, False, True),
    ],
)
def test_a_winner_needs_pairs_an_interval_without_zero_and_a_corrected_p_value(changes, better, worse):
    values = {"n": 3, "difference": 1.0, "low": 0.5, "high": 1.5, "p": 0.01, "holm": 0.02, **changes}
    comparison = Comparison(**values)
    assert (comparison.better, comparison.worse) == (better, worse)


def test_correlations():
    assert correlation([1, 2, 3, 5], [2, 4, 6, 10]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [1, 10, 100, 50]) == pytest.approx(0.8)
    for function in (correlation, rank_correlation):
        assert function([1, 2], [1, 2]) is None
        assert function([1 + 1e-15, 1.0, 1.0], [1, 2, 3]) is None
        assert function([1, 2, 3], [2, 2, 2]) is None
