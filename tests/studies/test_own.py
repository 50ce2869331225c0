"""Studies of this package's own: their arms differ in what they compare, and in nothing else."""

import pytest

from spatialgrad.studies.own.quantization import AFTER_SEARCH, SEARCH
from spatialgrad.studies.registry import get_study
from spatialgrad.studies.study import SCALES
from spatialgrad.train.config import flatten, to_dict, with_values

DIFFERENCES = {
    "adaptive": {"method.name", "scaling.apply"},
    "live": {"scaling.live"},
    "measurement": {"method.name", "scaling.live", "scaling.schedule"},
    "sources": {"method.name", "scaling.k", "scaling.live"},
    "datasets": {"method.name"},
    "regimes": {"method.name"},
    "length": {"method.name"},
    "fitted": {"method.name"},
    "fine-tuning": {"method.name"},
    "controls": {"method.name", "scaling.control", "optimizer.lr", "optimizer.weight_decay", "label_smoothing"},
}
"""The fields in which the arms of a group differ."""


def groups(name, scale):
    """The arms of each group, by label."""
    found = {}
    for arm in get_study(name).arms(scale):
        found.setdefault(tuple(arm.group.values()), {})[arm.label] = arm
    return found


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", DIFFERENCES)
def test_the_arms_of_a_group_differ_in_what_they_compare(name, scale):
    differing = set()
    for arms in groups(name, scale).values():
        first, *others = (flatten(to_dict(arm.config)) for arm in arms.values())
        differing |= {field for each in others for field in each if each[field] != first[field]}
        assert [arm.reference for arm in arms.values()] == [True] + [False] * len(others)
    assert differing == DIFFERENCES[name]


@pytest.mark.parametrize("scale", SCALES)
def test_rows_train_as_they_are_named(scale):
    for (_, optimizer), arms in groups("adaptive", scale).items():
        assert {arm.config.optimizer.name for arm in arms.values()} == {optimizer.lower()}
        assert [arm.config.scaling.apply for arm in arms.values()][1:] == ["gradient", "update"]
    (sources,) = groups("sources", scale).values()
    of_mutual_information = [arm.config.scaling for arm in sources.values() if arm.config.method.name == "sgs"]
    assert [each.k for each in of_mutual_information] == [2, 3, 5, 7, 10, 5]
    assert [each.live for each in of_mutual_information] == [False] * 5 + [True]


@pytest.mark.parametrize("scale", SCALES)
def test_the_grid_search_trains_like_its_arm(scale):
    study = get_study("sources")
    (search,) = study.searches(scale)
    (tuned,) = [arm for arm in study.arms(scale) if arm.tuned_by]
    assert (tuned.tuned_by, tuned.config.method) == (search.name, search.config.method)
    assert search.config.data.validation > 0
    assert set(search.grid) == {"scaling.alpha", "scaling.beta"}


def test_desk_studies_share_their_runs():
    """Equal configs: what one study has archived, another one does not train again."""

    def configs(name):
        return {arm.label: arm.config for arm in get_study(name).arms("desk") if "CIFAR-10" not in arm.group.values()}

    cifar, sources, live = configs("cifar"), configs("sources"), configs("live")
    assert sources["Plain"] == cifar["Origin"]
    assert sources["mutual information, k = 5"] == cifar["SGS (ours)"] == live["update(loader)"]
    assert sources["mutual information, live"] == live["live"]
    assert configs("measurement")["SGS"] == configs("controls")["SGS"]


@pytest.mark.parametrize("scale", SCALES)
def test_every_method_is_trained_as_the_controls_and_evaluated_in_int8(scale):
    search, *methods = get_study("quantization").arms(scale)
    assert (search.label, search.shown) == (SEARCH, False)
    as_controls = {arm.label: arm.config for arm in get_study("controls").arms(scale)}
    epochs = as_controls["Plain"].budget.epochs
    assert search.config.budget.epochs < epochs
    for arm in methods:
        if arm.label in as_controls:
            assert arm.config == with_values(as_controls[arm.label], {"budget.int8": True})
        assert arm.config.budget.int8
        assert arm.config.budget.epochs == epochs
        assert (arm.backbone == search.key) == arm.pays_for_backbone == (arm.label in AFTER_SEARCH)
