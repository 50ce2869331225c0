"""What is said about k, and how sure it is."""

import pytest

from spatialgrad.report.tuning import explain_verdict, judge


def by_seed(*values):
    return dict(zip(range(1, len(values) + 1), values, strict=True))


def test_a_clear_winner():
    verdict = judge({5.0: by_seed(70.0, 70.2, 69.9), 2.0: by_seed(73.0, 73.1, 72.9)}, 5.0)
    assert (verdict.best.k, verdict.is_clear, verdict.recommended, verdict.equals) == (2.0, True, 2.0, ())
    said = explain_verdict(verdict, "accuracy")
    assert "Best k: 2, held-out accuracy 73.00 ± 0.10 % (3 seeds)." in said
    assert "It is better than k = 5 by +2.97 points [95 % CI +2.82, +3.11]." in said
    assert "hardly" not in said


def test_a_winner_by_chance():
    values = {5.0: by_seed(70.0, 71.0, 69.0), 2.0: by_seed(70.5, 70.0, 70.5), 9.0: by_seed(69.0, 71.5, 69.0)}
    verdict = judge(values, 5.0)
    assert (verdict.best.k, verdict.is_clear, verdict.recommended) == (2.0, False, 5.0)
    assert verdict.equals == (5.0, 9.0)
    said = explain_verdict(verdict, "accuracy")
    assert "Indistinguishable from it: k = 5, 9." in said
    assert "Its difference from k = 5 is +0.33 points [95 % CI" in said
    assert "3 seeds leave open whether k matters. Keep k = 5, or repeat the command with more --seeds." in said
    assert "hardly" not in said


def test_a_winner_by_chance_whose_interval_is_narrow():
    verdict = judge({5.0: by_seed(70.0, 71.0, 69.0), 2.0: by_seed(70.2, 71.0, 69.1)}, 5.0)
    said = explain_verdict(verdict, "accuracy")
    assert "k hardly matters here: the difference from k = 5 is +0.10 points [95 % CI −0.15, +0.35]." in said
    assert "Keep k = 5." in said


def test_the_reference_is_the_best_by_chance():
    said = explain_verdict(judge({5.0: by_seed(70.0, 71.0, 70.0), 2.0: by_seed(69.9, 71.1, 69.9)}, 5.0), "mIoU")
    assert "Best k: 5" in said
    assert "k hardly matters here: none of the others differs clearly from k = 5." in said
    said = explain_verdict(judge({5.0: by_seed(70.0, 71.0, 70.0), 2.0: by_seed(69.9, 72.2, 68.5)}, 5.0), "mIoU")
    assert "None of the others differs clearly from k = 5." in said
    assert "hardly" not in said


def test_the_reference_is_the_best_and_others_are_worse():
    verdict = judge({5.0: by_seed(70.0, 70.1, 70.2), 20.0: by_seed(60.0, 60.2, 60.1)}, 5.0)
    said = explain_verdict(verdict, "accuracy")
    assert verdict.equals == ()
    assert said.endswith("Worse: k = 20. Keep k = 5.")
    assert "hardly" not in said


def test_only_some_are_worse():
    values = {5.0: by_seed(70.0, 70.1, 70.2), 20.0: by_seed(60.0, 60.2, 60.1), 3.0: by_seed(69.8, 70.3, 70.0)}
    said = explain_verdict(judge(values, 5.0), "accuracy")
    assert "Indistinguishable from it: k = 3." in said
    assert said.endswith("Worse: k = 20. Among the others, k hardly matters. Keep k = 5.")


def test_two_seeds_are_too_few():
    verdict = judge({5.0: by_seed(70.0, 70.1), 2.0: by_seed(73.0, 73.12)}, 5.0)
    assert not verdict.is_clear
    said = explain_verdict(verdict, "accuracy")
    assert "too few seeds" in said
    assert "more --seeds" in said


def test_the_best_of_many_must_be_better_than_chance_makes_one_of_them():
    values = {k: by_seed(70.0 + 0.1 * k, 70.3, 70.1) for k in (1.0, 2.0, 3.0)}
    winner = {4.0: by_seed(71.0, 71.6, 71.0)}
    alone = judge({5.0: by_seed(70.0, 70.2, 70.1), **winner}, 5.0)
    among = judge({5.0: by_seed(70.0, 70.2, 70.1), **winner, **values}, 5.0)
    assert alone.best.over_reference.holm < among.best.over_reference.holm


@pytest.mark.parametrize("values", [{5.0: {}}, {2.0: by_seed(1.0, 2.0)}, {5.0: by_seed(1.0, 2.0), 2.0: {}}])
def test_nothing_to_say(values):
    assert judge(values, 5.0) is None


def test_equal_results_are_indistinguishable():
    verdict = judge({5.0: by_seed(70.0, 70.0), 2.0: by_seed(70.0, 70.0)}, 5.0)
    assert (verdict.best.k, verdict.equals) == (5.0, (2.0,))
