"""The statistics against values worked out by hand and against independent formulations."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from spatialgrad.report.statistics import (
    Comparison,
    compare_paired,
    correct,
    correlation,
    holm,
    rank_correlation,
    student_probability,
    student_quantile,
    summarize,
)


def test_mean_and_sample_deviation_by_hand():
    summary = summarize([70.0, 71.0, 75.0])
    assert summary.n == 3
    assert summary.mean == pytest.approx(72.0)
    assert summary.std == pytest.approx(math.sqrt((4 + 1 + 9) / 2))


def test_one_seed_has_no_deviation_and_none_has_no_summary():
    assert summarize([70.0]).std is None
    assert summarize([70.0]).n == 1
    assert summarize([]) is None


def test_a_paired_comparison_by_hand():
    # Differences 1, 2, 3: mean 2, deviation 1, standard error 1/√3, t = 2√3 with 2 degrees of freedom.
    comparison = compare_paired({0: 71.0, 1: 72.0, 2: 76.0}, {0: 70.0, 1: 70.0, 2: 73.0})
    assert comparison.n == 3
    assert comparison.difference == pytest.approx(2.0)
    # For 2 degrees of freedom both have a closed form: p = 1 − t/√(t²+2), and the 97.5 % point is 4.302652730.
    t = 2 * math.sqrt(3)
    assert comparison.p == pytest.approx(1 - t / math.sqrt(t * t + 2))
    assert comparison.low == pytest.approx(2 - 4.302652729911275 / math.sqrt(3))
    assert comparison.high == pytest.approx(2 + 4.302652729911275 / math.sqrt(3))


def test_only_common_seeds_count():
    comparison = compare_paired({0: 1.0, 1: 2.0, 5: 100.0}, {1: 1.0, 0: 0.5, 7: -100.0})
    assert comparison.n == 2
    assert comparison.difference == pytest.approx(0.75)
    assert compare_paired({0: 1.0}, {1: 1.0}) is None


def test_one_pair_and_equal_differences_are_not_tested():
    single = compare_paired({0: 2.0}, {0: 1.0})
    assert (single.difference, single.low, single.p) == (1.0, None, None)
    assert "one pair" in single.note
    # 0.3 − 0.2 and 0.2 − 0.1 are not the same float.
    same = compare_paired({0: 0.3, 1: 0.2, 2: 5.1}, {0: 0.2, 1: 0.1, 2: 5.0})
    assert same.p is None
    assert "equal" in same.note
    assert not same.supported


values = st.floats(min_value=10, max_value=90).map(lambda x: round(x, 2))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(values, values), min_size=2, max_size=8))
def test_interval_and_p_value_agree_with_the_one_sample_formulation(pairs):
    ours, reference = np.array(pairs).T
    differences = ours - reference
    comparison = compare_paired(dict(enumerate(ours)), dict(enumerate(reference)))
    assert comparison.difference == pytest.approx(differences.mean(), abs=1e-9)
    if comparison.p is None:
        assert np.allclose(differences, differences[0])
        return
    low, high = stats.t.interval(0.95, len(pairs) - 1, differences.mean(), stats.sem(differences))
    assert (comparison.low, comparison.high) == pytest.approx((low, high))
    # The p value is the area under both tails of Student's density, integrated numerically.
    t = abs(differences.mean()) / (differences.std(ddof=1) / math.sqrt(len(pairs)))
    degrees = len(pairs) - 1

    def density(x):
        scale = math.gamma((degrees + 1) / 2) / (math.sqrt(degrees * math.pi) * math.gamma(degrees / 2))
        return scale * (1 + x * x / degrees) ** (-(degrees + 1) / 2)

    inside, _ = integrate.quad(density, 0, min(t, 50.0))
    if t < 50:
        assert comparison.p == pytest.approx(1 - 2 * inside, abs=1e-6)
    # The interval excludes 0 exactly when p < 0.05: two ways to the same answer.
    assert (comparison.low > 0 or comparison.high < 0) == (comparison.p < 0.05)


def test_holm_by_hand():
    # Sorted: 0.005·4, 0.01·3 = 0.03, 0.03·2 = 0.06, 0.04·1 = 0.04, which may not fall below 0.06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


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
    clear = [i for i, p in enumerate(corrected) if abs(p - 0.05) > 1e-9]
    if len(clear) == len(p_values):
        assert {index for index in clear if corrected[index] < 0.05} == rejected


def test_correction_skips_what_is_not_tested():
    tested = Comparison(n=3, difference=1.0, low=0.5, high=1.5, p=0.02)
    single = Comparison(n=1, difference=1.0)
    first, second, third, fourth = correct([tested, None, single, tested])
    assert first.holm == pytest.approx(0.04)
    assert fourth.holm == pytest.approx(0.04)
    assert second is None
    assert third.holm is None


def test_pending_comparisons_count_as_worse_ones():
    assert holm([0.01, 0.2], pending=3) == pytest.approx([0.05, 0.8])
    assert holm([0.01, 0.2, 1.0, 1.0, 1.0])[:2] == pytest.approx([0.05, 0.8])


def test_a_winner_needs_pairs_an_interval_without_zero_and_a_corrected_p_value():
    good = Comparison(n=3, difference=1.0, low=0.5, high=1.5, p=0.01, holm=0.02)
    assert good.better
    assert not good.worse
    assert not Comparison(n=2, difference=1.0, low=0.5, high=1.5, p=0.01, holm=0.02).better
    assert not Comparison(n=3, difference=1.0, low=0.5, high=1.5, p=0.01, holm=0.08).better
    assert not Comparison(n=3, difference=1.0, low=-0.1, high=1.5, p=0.01, holm=0.02).better
    assert not Comparison(n=3, difference=1.0, low=0.5, high=1.5, p=0.01).better
    assert Comparison(n=3, difference=-1.0, low=-1.5, high=-0.5, p=0.01, holm=0.02).worse


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=3, max_size=12))
def test_correlations_are_scipys(pairs):
    xs, ys = zip(*pairs, strict=True)
    for ours, theirs in ((correlation, stats.pearsonr), (rank_correlation, stats.spearmanr)):
        if len(set(xs)) == 1 or len(set(ys)) == 1:
            assert ours(xs, ys) is None
        else:
            assert ours(xs, ys) == pytest.approx(theirs(xs, ys).statistic, abs=1e-9)


def test_correlations_need_three_pairs_and_survive_huge_numbers():
    assert correlation([1, 2], [1, 2]) is None
    assert correlation([1 + 1e-15, 1.0, 1.0], [1, 2, 3]) is None
    assert correlation([0.0, 1e300, 2e300], [1.0, 2.0, 3.0]) == pytest.approx(1)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 29, 30, 499])
def test_students_distribution_is_scipys(freedom):
    for t in (0.0, 0.3, 1.0, 2.5, 12.7, 1e6):
        expected = 1 - 2 * stats.t.sf(t, freedom)
        assert student_probability(t, freedom) == pytest.approx(expected, abs=1e-12)
        assert student_probability(-t, freedom) == student_probability(t, freedom)
    for probability in (0.5, 0.95, 0.999):
        expected = stats.t.ppf((1 + probability) / 2, freedom)
        assert student_quantile(probability, freedom) == pytest.approx(expected, rel=1e-10)
