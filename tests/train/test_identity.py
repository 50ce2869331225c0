"""What makes two runs the same."""

from dataclasses import replace
from pathlib import Path

import pytest

from spatialgrad.train import ModelConfig, TrainConfig, recipe
from spatialgrad.train.config import FREE, changed_fields, flatten, to_dict, with_values
from spatialgrad.train.identity import Identity, describe_difference, explain_difference, is_longer

POCKET = recipe("pocket")


def test_defaults_are_left_out():
    """So that a field that is added later does not change the digests of earlier runs."""
    assert changed_fields(TrainConfig()) == {}
    assert Identity(TrainConfig()).digest == "c13772838c67b97c"
    assert Identity(POCKET, "abc", 2).digest == "a421e3749bee9f17"


def test_where_it_runs_does_not_matter():
    elsewhere = with_values(
        POCKET, {"machine.devices": 2, "machine.workers": 3, "data.root": Path("/data"), "out": "x"}
    )
    assert Identity(elsewhere).digest == Identity(POCKET).digest
    assert not explain_difference(Identity(POCKET), Identity(elsewhere))
    assert set(FREE) <= set(flatten(to_dict(TrainConfig())))


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (Identity(replace(POCKET, seed=1), "abc", 1), {"seed": (0, 1)}),
        (Identity(with_values(POCKET, {"scaling.k": 4.0}), "abc", 1), {"scaling.k": (5.0, 4.0)}),
        (Identity(POCKET, "xyz", 1), {"data": ("abc", "xyz")}),
        (Identity(POCKET, "abc", 2), {"processes": (1, 2)}),
    ],
)
def test_differences(other, difference):
    there = Identity(POCKET, "abc", 1)
    assert explain_difference(there, other) == difference
    assert other.digest != there.digest
    assert all(repr(value) in describe_difference(difference) for value in next(iter(difference.values())))


def test_what_is_not_known_is_not_compared():
    assert not explain_difference(Identity(POCKET), Identity(POCKET, "abc", 2))


def test_more_epochs():
    longer = with_values(POCKET, {"budget.epochs": 20})
    assert is_longer(explain_difference(Identity(POCKET), Identity(longer)))
    assert not is_longer(explain_difference(Identity(longer), Identity(POCKET)))
    assert not is_longer(explain_difference(Identity(POCKET), Identity(replace(longer, seed=1))))


def test_a_backbone_is_known_by_the_end_of_its_path():
    """A study may be moved together with its backbones."""

    def started_from(path):
        config = recipe("segmentation_pocket")
        return Identity(replace(config, model=replace(config.model, backbone=path)))

    here, moved = started_from(Path("/a/runs/backbone/seed0")), started_from(Path("/b/backbone/seed0"))
    assert here.digest == moved.digest
    assert not explain_difference(here, moved)
    for other in (Path("/a/runs/backbone/seed1"), None):
        assert list(explain_difference(here, started_from(other))) == ["model.backbone"]


def test_options_of_a_network_count():
    first, second = (Identity(TrainConfig(model=ModelConfig(options=options))) for options in (("dropout=0.1",), ()))
    assert first.digest != second.digest
