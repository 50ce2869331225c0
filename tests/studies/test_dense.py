"""The studies of segmentation and pose: every combination of pre-training and fine-tuning, from backbones that fit."""

import pytest
import torch

from spatialgrad.models import create_model
from spatialgrad.models.backbone import load_backbone_
from spatialgrad.studies.base import SCALES
from spatialgrad.studies.registry import get_study

DENSE = ("segmentation", "pose")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", DENSE)
def test_all_four_combinations(name, scale):
    arms = {arm.key: arm for arm in get_study(name).arms(scale)}
    shown = [arm for arm in arms.values() if arm.shown]
    combinations = {
        (arm.group["Model"], arms[arm.backbone].config.method.name, arm.config.method.name) for arm in shown
    }
    assert len(combinations) == len(shown) == (12 if scale == "paper" else 4)
    for arm in shown:
        assert arm.config.task == name
        assert arms[arm.backbone].config.task == "classification"
        assert arm.reference == (arm.label == "Baseline")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", DENSE)
def test_backbones_fit(name, scale):
    arms = {arm.key: arm for arm in get_study(name).arms(scale)}
    for arm in arms.values():
        if arm.backbone is None:
            continue
        backbone = arms[arm.backbone].config.model
        if scale == "paper" and not arm.reference:
            continue  # the same networks again, and large ones
        source = create_model(backbone.name, width=backbone.width, num_classes=7)
        network = create_model(arm.config.model.name, width=arm.config.model.width, num_classes=5)
        load_backbone_(network, source.state_dict(), source=arm.backbone)
        weights = dict(network.named_parameters())
        (first,) = [weight for key, weight in weights.items() if key.endswith("backbone.conv1.weight")]
        assert torch.equal(first, source.conv1.weight)


def test_the_metric_is_that_of_the_data():
    assert [get_study("pose").metric_at(scale) for scale in SCALES] == ["pckh", "pck", "pck"]
    assert get_study("segmentation").metric_at("paper") == "miou"
