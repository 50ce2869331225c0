"""The settings of DyRep: checked, and plain enough for a config file."""

import dataclasses
import json

import pytest

from spatialgrad.reparam import DyRepConfig


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"interval": 0}, "interval must be at least 1 epoch, not 0"),
        ({"until": -1}, "until must be at least 0, or None for no limit, not -1"),
        ({"max_depth": 0}, "max_depth must be at least 1, not 0"),
        ({"score": "magic"}, "unknown score 'magic'; choose from synflow, snip, gradient-norm"),
        ({"spread": -1.0}, "spread must be at least 0, not -1.0"),
        ({"threshold": float("nan")}, "threshold must be at least 0, not nan"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        DyRepConfig(**wrong)


@pytest.mark.parametrize("config", [DyRepConfig(), DyRepConfig(interval=5, until=None, score="snip", seed=3)])
def test_a_config_survives_json(config):
    assert DyRepConfig(**json.loads(json.dumps(dataclasses.asdict(config)))) == config


def test_a_group_of_a_larger_config_can_extend_it():
    @dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
    class Group(DyRepConfig):
        batches: int = 20

    assert Group(interval=5).batches == 20
    with pytest.raises(ValueError, match="interval"):
        Group(interval=0)
