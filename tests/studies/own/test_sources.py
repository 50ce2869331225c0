"""Sources of scalings: what differs between the rows, and that runs of other studies serve as well."""

import pytest

from spatialgrad.studies.own.live import LIVE
from spatialgrad.studies.own.sources import SOURCES
from spatialgrad.studies.paper.table1_cifar import CIFAR
from spatialgrad.studies.study import SCALES
from spatialgrad.train.config import flatten, to_dict

SOURCE = {"method.name", "scaling.k", "scaling.live"}


def arms_of(scale):
    return {arm.label: arm for arm in SOURCES.arms(scale)}


@pytest.mark.parametrize("scale", SCALES)
def test_the_rows_differ_in_their_source_only(scale):
    configs = {label: flatten(to_dict(arm.config)) for label, arm in arms_of(scale).items()}
    plain = configs["Plain"]
    assert {field for each in configs.values() for field in plain if each[field] != plain[field]} == SOURCE
    of_mutual_information = [each for each in configs.values() if each["method.name"] == "sgs"]
    assert [each["scaling.k"] for each in of_mutual_information] == [2, 3, 5, 7, 10, 5]
    assert [each["scaling.live"] for each in of_mutual_information] == [False] * 5 + [True]


@pytest.mark.parametrize("scale", SCALES)
def test_the_grid_search_trains_like_its_arm(scale):
    (search,) = SOURCES.searches(scale)
    (tuned,) = [arm for arm in SOURCES.arms(scale) if arm.tuned_by]
    assert tuned.tuned_by == search.name
    assert search.config.method == tuned.config.method
    assert search.config.data.validation > 0
    assert set(search.grid) == {"scaling.alpha", "scaling.beta"}


def test_runs_of_other_desk_studies_are_the_same():
    arms = arms_of("desk")
    cifar = {arm.label: arm.config for arm in CIFAR.arms("desk") if arm.group["Dataset"] == "CIFAR-100"}
    assert arms["Plain"].config == cifar["Origin"]
    assert arms["mutual information, k = 5"].config == cifar["SGS (ours)"]
    assert arms["mutual information, live"].config in [arm.config for arm in LIVE.arms("desk")]
