"""The studies of segmentation and pose: every combination of pre-training and fine-tuning, from backbones that fit."""

import base64
import re
from dataclasses import replace

import pytest
import torch

from spatialgrad.models import create_model
from spatialgrad.models.resnet_encoder import load_encoder_
from spatialgrad.report import write_report
from spatialgrad.studies.registry import get_study
from spatialgrad.studies.study import SCALES
from spatialgrad.train import Run
from spatialgrad.train.config import with_values
from support.report import table_rows, text_of
from support.studies import run_here

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
        load_encoder_(network, source.state_dict(), source=arm.backbone)
        weights = dict(network.named_parameters())
        (first,) = [weight for key, weight in weights.items() if key.endswith("backbone.conv1.weight")]
        assert torch.equal(first, source.conv1.weight)


def test_the_metric_is_that_of_the_data():
    assert [get_study("pose").metric_at(scale) for scale in SCALES] == ["pckh", "pck", "pck"]
    assert get_study("segmentation").metric_at("paper") == "miou"


def tiny(study, root):
    """The study itself, with runs of seconds."""
    values = {"data.root": root, "model.width": 1 / 16, "budget.epochs": 2, "budget.evaluate_every": 1}
    values |= {"data.limit": 8, "data.test_limit": 4, "data.batch_size": 4, "scaling.every": 1}
    values |= {"machine.accelerator": "cpu", "machine.threads": 1}

    def arms(scale):
        sizes = {"segmentation": (32, 48), "pose": 64, "classification": None}
        return tuple(
            replace(arm, config=with_values(arm.config, {**values, "data.image_size": sizes[arm.config.task]}))
            for arm in study.arms(scale)
        )

    return replace(study, arms=arms)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* normalizes the gradient:spatialgrad.NoEffectWarning")
@pytest.mark.parametrize("name", DENSE)
def test_from_pre_training_to_a_report_with_pictures(name, tmp_path):
    root, folder = tmp_path / "no-data", tmp_path / f"{name}-pocket"
    jobs, _ = run_here(tiny(get_study(name), root), folder)
    assert not jobs.failed
    assert len(jobs.finished) == 6
    page = write_report([folder]).read_text()

    runs = [path.parent for path in sorted(folder.glob("runs/*/seed0/examples"))]
    assert len(runs) == 4
    methods = {
        (Run.open(Run.open(run).config.model.backbone).config.method.name, Run.open(run).config.method.name)
        for run in runs
    }
    assert methods == {(first, second) for first in ("baseline", "sgs") for second in ("baseline", "sgs")}
    # Three examples of each arm, and every picture is a file of its run.
    shown = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="[^"]*: (image|truth|prediction)"', page)
    assert [title for _, title in shown] == 4 * 3 * ["image", "truth", "prediction"]
    files = {path.read_bytes() for run in runs for path in (run / "examples").glob("*.png")}
    assert {base64.b64decode(content) for content, _ in shown} <= files
    assert ("joints correct" if name == "pose" else "of the pixels correct") in page
    assert ("left" if name == "pose" else "grass") in page.split('class="examples"')[1]
    # The table has the metric of the run folders.
    values = [100 * Run.open(run).result.value for run in runs]
    assert sorted(text_of([value]) for value in values) == sorted(
        cell for row in table_rows(folder) for header, cell in row.items() if header == "Ours (%)"
    )
