"""Which values of k are trained again, and which searches are refused."""

from dataclasses import replace

import pytest

from spatialgrad.studies.plan import make_plan
from spatialgrad.studies.tune import (
    check_bounds,
    check_config,
    check_same_search,
    finalists,
    first_record,
    ks_of,
    rounded,
    tune_study,
)
from spatialgrad.train import ConfigError, OtherConfigError
from support.studies import tiny_config


def config(**groups):
    return tiny_config("sgs", data={"validation": 0.2, "limit": 120}, **groups)


def test_the_best_values_that_differ_are_trained_again():
    values = {2.0: 0.70, 2.1: 0.71, 5.0: 0.60, 5.5: 0.90, 9.0: 0.65, 15.0: 0.66, 20.0: 0.1}
    # 5.5 is too close to the reference to be told from it, and 2.0 to 2.1.
    assert finalists(values, 5.0) == [2.1, 15.0, 9.0]
    assert finalists(values, 5.0, number=1) == [2.1]


def test_in_a_narrow_range_the_best_one_is():
    assert finalists({5.0: 0.5, 5.1: 0.4, 5.2: 0.6}, 5.0) == [5.2]
    assert finalists({5.0: 0.5}, 5.0) == []


def test_equal_values_have_an_order():
    assert finalists({20.0: 0.5, 1.0: 0.5, 3.0: 0.5}, 5.0) == [1.0, 3.0, 20.0]


@pytest.mark.parametrize("bounds", [(20.0, 1.0), (3.0, 3.0), (0.0, 5.0), (-1.0, 5.0), (1.0, float("inf"))])
def test_a_range_that_cannot_be_searched(bounds):
    with pytest.raises(ConfigError, match=r"--k must be two positive numbers, the smaller one first"):
        check_bounds(bounds)


def test_a_training_that_cannot_choose():
    check_config(config())
    with pytest.raises(ConfigError, match=r"--data\.validation must be above 0"):
        check_config(tiny_config("sgs"))
    with pytest.raises(ConfigError, match=r"--epochs must be greater than --scaling\.warmup 2, got 2"):
        check_config(config(scaling={"warmup": 2}))


def test_the_reference_is_the_k_of_the_config():
    arms = tune_study(config(scaling={"k": 4.0}), [9.0, 2.5]).arms("own")
    assert [arm.label for arm in arms] == ["k = 2.5", "k = 4", "k = 9"]
    assert [arm.reference for arm in arms] == [False, True, False]
    assert [arm.config.scaling.k for arm in arms] == [2.5, 4.0, 9.0]


def test_the_runs_that_decide_are_not_those_of_the_search(tmp_path):
    plan = make_plan(tune_study(config(), [9.0]), "own", tmp_path, num_seeds=2, first_seed=1)
    assert {job.config.seed for job in plan.jobs} == {1, 2}
    assert ks_of(plan.record) == [5.0, 9.0]


def test_another_search_in_the_folder_is_refused_by_its_flags():
    record = first_record(config(), (1.0, 20.0), "")
    check_same_search(record, config(), (1.0, 20.0))
    check_same_search(record, replace(config(), tensorboard=True), (1.0, 20.0))
    with pytest.raises(OtherConfigError, match=r"--k: '1 20' there, '2 20' now"):
        check_same_search(record, config(), (2.0, 20.0))
    with pytest.raises(OtherConfigError, match=r"(?s)--epochs: 2 there, 7 now.*--out"):
        check_same_search(record, config(budget={"epochs": 7}), (1.0, 20.0))


def test_three_digits():
    assert rounded(3.28475) == 3.28
    assert rounded(12.3456) == 12.3
