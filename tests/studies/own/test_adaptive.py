"""Adam and AdamW: the arms differ in what they compare, and in nothing else."""

import pytest

from spatialgrad.studies.own.adaptive import ADAPTIVE, GRADIENT, PLAIN, UPDATE
from spatialgrad.studies.study import SCALES
from spatialgrad.train.config import flatten, to_dict


@pytest.mark.parametrize("scale", SCALES)
def test_the_arms_of_a_group_differ_in_the_scaling_only(scale):
    groups = {}
    for arm in ADAPTIVE.arms(scale):
        groups.setdefault(tuple(arm.group.values()), {})[arm.label] = flatten(to_dict(arm.config))
    assert [name for name, _ in groups] == [*[next(iter(groups))[0]] * 2, "ConvNeXt-Atto"]
    for (_, optimizer), arms in groups.items():
        assert list(arms) == [PLAIN, GRADIENT, UPDATE]
        assert all(config["optimizer.name"] == optimizer.lower() for config in arms.values())
        differ = {field for field, value in arms[PLAIN].items() if any(arms[each][field] != value for each in arms)}
        assert differ == {"method.name", "scaling.apply"}
        assert [arms[each]["scaling.apply"] for each in (GRADIENT, UPDATE)] == ["gradient", "update"]
