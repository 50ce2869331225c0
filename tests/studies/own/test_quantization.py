"""All methods in the controls' setting, evaluated in INT8 as well."""

import pytest

from spatialgrad.studies.own import controls
from spatialgrad.studies.own.quantization import AFTER_SEARCH, ARMS, SEARCH, arms
from spatialgrad.studies.study import SCALES
from spatialgrad.train.config import with_values


@pytest.mark.parametrize("scale", SCALES)
def test_every_method_is_trained_as_the_controls_and_evaluated_in_int8(scale):
    search, *methods = arms(scale)
    assert search.label == SEARCH
    assert not search.shown
    assert {arm.label for arm in methods} == set(ARMS)
    as_controls = {arm.label: arm.config for arm in controls.arms(scale)}
    for arm in methods:
        if arm.label in as_controls:
            assert arm.config == with_values(as_controls[arm.label], {"budget.int8": True})
        assert arm.config.budget.int8
        assert arm.config.budget.epochs == as_controls["Plain"].budget.epochs
        assert (arm.backbone == search.key) == arm.pays_for_backbone == (arm.label in AFTER_SEARCH)
    assert search.config.budget.epochs < as_controls["Plain"].budget.epochs
