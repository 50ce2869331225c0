"""Pose through the engine: loss and metric, training, resuming, processes, methods, export, pictures, bad input."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from spatialgrad.cli.main import main
from spatialgrad.data.batches import Pass
from spatialgrad.data.pose import mirror_joints
from spatialgrad.models import create_model
from spatialgrad.train import (
    ConfigError,
    load_model,
    recipe,
)
from spatialgrad.train.jsonfiles import read_lines
from spatialgrad.train.tasks.base import add_
from spatialgrad.train.tasks.pose import Pose
from support.pose_files import write_lspet, write_mpii_h5
from support.training import assert_resumes, quietly, with_groups

CPU = torch.device("cpu")

# The recipes scale Adam's gradients, as the paper did.
pytestmark = pytest.mark.filterwarnings("ignore:.* normalizes the gradient:spatialgrad.NoEffectWarning")


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """Small data sets of stick figures."""
    folder = tmp_path_factory.mktemp("pose-data")
    write_lspet(folder / "lspet", 31)
    write_mpii_h5(folder / "mpii")
    return folder


def small(root, out=None, method="baseline", *, epochs=3, name="lspet", **groups):
    """A training of seconds: 25 people, 4 steps an epoch, the last batch smaller."""
    changes = {
        "model": {"width": 1 / 16},
        "data": {"name": name, "root": root, "batch_size": 8},
        "method": {"name": method},
        "scaling": {"every": 1},
        "budget": {"epochs": epochs, "evaluate_every": 1},
        "machine": {"accelerator": "cpu", "threads": 1, "workers": 0},
        "dyrep": {"interval": 1},
    }
    config = with_groups(recipe("pose_pocket"), {**changes, "out": out})
    return with_groups(config, groups)


def totals(task, model, batches):
    sums = {}
    with torch.no_grad():
        for batch in batches:
            add_(sums, task.evaluate(model.eval(), batch))
    return sums


def plain_loss(maps, joints, visible, sigma):
    """Image by image, joint by joint, pixel by pixel."""
    number, count, side, _ = maps.shape
    whole = 0.0
    for image in range(number):
        for joint in range(count):
            x, y = ((float(value) + 0.5) / 4 - 0.5 for value in joints[image, joint])
            if not visible[image, joint] or not all(-0.5 <= value <= side - 0.5 for value in (x, y)):
                continue
            for row in range(side):
                for column in range(side):
                    truth = math.exp(-((column - x) ** 2 + (row - y) ** 2) / (2 * sigma**2))
                    whole += (float(maps[image, joint, row, column]) - truth) ** 2 / side**2
    return whole / (number * count)


class Constant(nn.Module):
    """Heat maps that do not depend on the image."""

    def __init__(self, maps):
        super().__init__()
        self.maps = nn.Parameter(maps)

    def forward(self, images):
        return self.maps.expand(len(images), *self.maps.shape[1:])


def test_the_loss_is_that_of_visible_joints_within_the_image(root):
    task = Pose(small(root), CPU)
    joints, visible = torch.rand(2, 14, 2) * 80 - 8, torch.rand(2, 14) < 0.6
    batch = (torch.zeros(2, 3, 64, 64), joints, visible, torch.ones(2))
    maps = torch.rand(1, 14, 16, 16)
    loss, sums = task.loss(Constant(maps), batch)
    assert loss.requires_grad
    loss = loss.detach()
    assert float(loss) == pytest.approx(plain_loss(maps.expand(2, -1, -1, -1), joints, visible, 1.0), rel=1e-5)
    assert float(sums["loss"]) == pytest.approx(2 * float(loss))
    assert not sums["loss"].requires_grad


def test_people_without_visible_joints_give_no_nan(root):
    task = Pose(small(root), CPU)
    model = create_model("poseresnet18", num_classes=14, width=1 / 16)
    batch = (torch.randn(3, 3, 64, 64), torch.zeros(3, 14, 2), torch.zeros(3, 14, dtype=torch.bool), torch.zeros(3))
    loss, sums = task.loss(model, batch)
    loss.backward()
    assert float(loss.detach()) == 0
    assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters())
    assert task.metrics(sums) == {"loss": 0.0, "pck": 0.0}


def test_metrics_by_hand(root):
    """A network that finds joint 3 always and joint 5 never, and nothing else is visible."""
    task = Pose(small(root, pose={"flip_test": False}), CPU)
    joints, visible = torch.full((4, 14, 2), 33.5), torch.zeros(4, 14, dtype=torch.bool)
    visible[:, [3, 5]] = True
    maps = torch.zeros(1, 14, 16, 16)
    maps[0, :, 8, 8] = 1  # stands for (33.5, 33.5)
    joints[:, 5] = torch.tensor([33.5, 39.5])
    batch = (torch.zeros(4, 3, 64, 64), joints, visible, torch.full((4,), 20.0))
    assert task.metrics(task.evaluate(Constant(maps), batch))["pck"] == 0.5  # 6 pixels are more than 0.2 × 20
    batch = (*batch[:3], torch.full((4,), 31.0))
    assert task.metrics(task.evaluate(Constant(maps), batch))["pck"] == 1.0


def test_totals_do_not_depend_on_the_batches(root):
    task, model = Pose(small(root), CPU), create_model("poseresnet18", num_classes=14, width=1 / 16)
    other = Pose(small(root, data={"batch_size": 3}), CPU)
    whole, parts = (totals(it, model, it.eval_batches()) for it in (task, other))
    halves = {}
    for rank in (0, 1):
        batches = Pose(small(root, data={"batch_size": 2}), CPU).eval_batches(rank=rank, world_size=2)
        add_(halves, totals(task, model, batches))
    for found in (parts, halves):
        assert torch.equal(found["right"], whole["right"])
        assert torch.equal(found["scored"], whole["scored"])
        assert int(found["images"]) == 6
        assert float(found["loss"]) == pytest.approx(float(whole["loss"]))


def test_flip_test(root):
    """The prediction of the mirrored image is the mirrored prediction, after the joints have changed sides."""
    model = create_model("poseresnet18", num_classes=14, width=1 / 16).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        for flip_test in (False, True):
            task = Pose(small(root, pose={"flip_test": flip_test}), CPU)
            maps, mirrored = task.predict(model, images), task.predict(model, images.flip(3))
            difference = (mirror_joints(mirrored.flip(3), task.skeleton, dim=1) - maps).abs().max() / maps.std()
            assert bool(difference < 1e-5) == flip_test


def test_a_run(root, tmp_path):
    result, said = quietly(small(root, tmp_path, "sgs", epochs=2))
    assert result.metric == "pck"
    assert result.dataset == "LSPe 31, every fifth image held out for testing"
    assert 0 <= result.value <= 1
    assert "pck" in said
    assert json.loads((tmp_path / "result.json").read_text())["pck"] == result.value
    first = read_lines(tmp_path / "scalings.jsonl")[0]
    assert {"upsample.0", "upsample.3", "upsample.6"} <= set(first["skipped"])
    assert first["skipped"]["upsample.3"] == "transposed convolution"
    assert all(name.startswith("backbone.") for name in first["scalings"])
    check_pictures(tmp_path / "examples")
    task, model = Pose(small(root), CPU), load_model(tmp_path)
    assert task.metrics(totals(task, model, task.eval_batches())) == pytest.approx(result.test, abs=2e-2)


def test_mpii_is_scored_by_heads(root, tmp_path):
    result, _ = quietly(small(root, tmp_path, "dyrep", name="mpii", epochs=2, data={"batch_size": 3}))
    assert result.metric == "pckh"
    assert set(result.test) == {"loss", "pckh"}
    assert "test_pckh" in read_lines(tmp_path / "metrics.jsonl")[0]
    assert load_model(tmp_path)(torch.zeros(1, 3, 64, 64)).shape == (1, 16, 16, 16)


@pytest.mark.slow
@pytest.mark.realdata
def test_real_people_are_learned(data_folder, tmp_path):
    config = small(
        Path(data_folder),
        tmp_path,
        "sgs",
        epochs=4,
        model={"width": 0.25},
        data={"batch_size": 16},
        scaling={"every": 3},
    )
    config = replace(config, budget=replace(config.budget, evaluate_every=4))
    task = Pose(config, CPU)
    torch.manual_seed(config.seed)
    untrained = task.metrics(totals(task, task.build_model(), task.eval_batches()))
    result, _ = quietly(config)
    assert result.dataset == "LSPe 1,500, every fifth image held out for testing"
    assert result.value > 2 * untrained["pck"]
    assert result.value > 0.1
    assert result.test["loss"] < untrained["loss"]


def test_stopped_in_an_epoch_and_at_its_end_and_resumed(root, tmp_path):
    assert_resumes(lambda out: small(root, out, "sgs", epochs=2), tmp_path, 2, 3)


def check_pictures(folder):
    shown = json.loads((folder / "examples.json").read_text())
    assert [entry["name"] for entry in shown["legend"]] == ["left", "right", "middle"]
    assert shown["legend"][1]["colour"] == "#ff5a3c"
    assert len(shown["examples"]) == 6
    for example in shown["examples"]:
        assert example["caption"].endswith("of 14 joints correct")
        assert [image["title"] for image in example["images"]] == ["image", "truth", "prediction"]
        pictures = [np.array(Image.open(folder / image["file"])) for image in example["images"]]
        assert {picture.shape for picture in pictures} == {(256, 256, 3)}
        plain, truth, _ = pictures
        assert not np.array_equal(plain, truth)


def test_skeletons_are_drawn_where_the_joints_are(root):
    task = Pose(small(root), CPU)
    shown = task.examples(Constant(torch.rand(1, 14, 16, 16)), 2)
    _, (joints,), (visible,), _ = task.dataset.read(Pass(split="test", training=False), torch.tensor([0]))
    truth = shown.examples[0].images["truth"]
    for joint in visible.nonzero().flatten().tolist():
        x, y = ((joints[joint] + 0.5) * 4 - 0.5).round().long().tolist()
        if 2 < x < 253 and 2 < y < 253:
            colour = shown.legend[task.skeleton.side(joint)]
            assert (truth[:, y, x].int() - torch.tensor(colour)).abs().max() < 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": {"image_size": 50}}, r"--data.image-size must be one multiple of 32 for pose, got 50"),
        ({"data": {"image_size": (64, 96)}}, "multiple of 32"),
        ({"data": {"test_limit": 7}}, r"--data.test-limit 7: lspet has only 6 test images"),
    ],
)
def test_what_the_data_cannot_give(change, message, root):
    with pytest.raises(ConfigError, match=message):
        Pose(small(root, **change), CPU)


@pytest.mark.parametrize(
    "values", [{"sigma": 0}, {"sigma": float("nan")}, {"scale": 1}, {"scale": -0.1}, {"rotation": 91}]
)
def test_wrong_values(values, root):
    with pytest.raises(ConfigError, match=rf"--pose\.{next(iter(values))} must be"):
        small(root, pose=values)


def test_the_command_line(root, tmp_path, capsys):
    flags = ["--task", "pose", "--model", "poseresnet18", "--dataset", "lspet", "--data.root", root, "--out", tmp_path]
    flags += ["--model.width", 1 / 16, "--data.image-size", 64, "--batch-size", 8, "--epochs", 1]
    assert main(["train", *map(str, flags), "--machine.accelerator", "cpu", "--machine.workers", "0"]) == 0
    assert "pck" in capsys.readouterr().out
    assert main(["train", "--model", "poseresnet18", "--dataset", "lspet"]) != 0
    assert "--task pose" in capsys.readouterr().err
    assert main(["data", "list", "--data.root", str(root)]) == 0
    assert "✓ lspet" in capsys.readouterr().out
