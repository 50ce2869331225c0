"""Segmentation from the first step to the file that is deployed: it learns, resumes, runs on two processes, exports."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from spatialgrad.data import eval_batches
from spatialgrad.models import create_model
from spatialgrad.train import (
    CheckpointError,
    ConfigError,
    export_onnx,
    load_model,
    recipe,
    resume,
)
from spatialgrad.train.checkpoint import read_checkpoint, save_checkpoint
from spatialgrad.train.evaluation import evaluate
from spatialgrad.train.jsonfiles import read_lines
from spatialgrad.train.learner import Learner
from spatialgrad.train.runtime import Runtime
from spatialgrad.train.start_weights import read_start_weights
from spatialgrad.train.tasks.segmentation import Segmentation, load_masks
from support.dense_files import write_camvid, write_cityscapes
from support.dense_training import tiny_segmentation
from support.training import (
    SILENT,
    Process,
    assert_resumes,
    assert_same_run,
    at_step,
    codes,
    kill,
    quietly,
    start_ranks,
    stop_after_seven_steps,
    stop_at,
    tiny,
    train_quietly,
    weights,
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_camvid(folder / "CamVid")
    write_cityscapes(folder / "cityscapes", train=5, val=2)
    return folder


def check_pictures(folder):
    index = json.loads((folder / "examples.json").read_text())
    assert list(index) == ["examples", "legend"]
    assert len(index["examples"]) == 6
    assert index["legend"][3] == {"name": "road", "colour": "#804080"}
    for number, example in enumerate(index["examples"]):
        assert "of the pixels correct" in example["caption"]
        titles = ["image", "truth", "prediction"]
        assert example["images"] == [{"title": title, "file": f"{number:02d}-{title}.png"} for title in titles]
        for image in example["images"]:
            with Image.open(folder / image["file"]) as picture:
                assert (picture.format, picture.mode, picture.size) == ("PNG", "RGB", (56, 40))
    names = {path.name for path in folder.iterdir()}
    assert names == {"examples.json", *(image["file"] for e in index["examples"] for image in e["images"])}


@pytest.mark.slow
@pytest.mark.realdata
def test_it_learns_real_camvid(data_folder, tmp_path):
    config = recipe("segmentation_pocket")
    config = replace(
        config,
        out=tmp_path,
        data=replace(config.data, name="camvid", root=Path(data_folder), image_size=(88, 120), limit=64, test_limit=40),
        budget=replace(config.budget, epochs=10, evaluate_every=10),
        machine=replace(config.machine, accelerator="cpu", threads=1),
    )
    result, said = quietly(config)
    runtime = Runtime(config.machine)
    task = Segmentation(config, runtime.device)
    torch.manual_seed(0)
    untrained = evaluate(task, runtime, task.build_model(), lambda number: None)
    # Everything is road would be 33 % of the pixels and an mIoU of 3 %.
    assert untrained["miou"] < 0.06
    assert result.value == result.test["miou"] > 2 * max(untrained["miou"], 0.05)
    assert result.test["allacc"] > 0.5
    assert result.test["loss"] < untrained["loss"] - 0.5
    assert f"miou {100 * result.value:.2f} % on the test images of CamVid 240×180, 64 train images" in said


@pytest.mark.parametrize("method", ["sgs", "dyrep"])
def test_it_trains_merges_and_says_what_it_is(method, root, tmp_path):
    result, said = quietly(tiny_segmentation(tmp_path, root, method))
    assert result.metric == "miou"
    assert (result.method, result.model) == (method, "pspnet18")
    line = read_lines(tmp_path / "metrics.jsonl")[-1]
    assert {"train_loss", "train_auxiliary_loss", "train_miou", "test_miou", "test_macc", "test_allacc"} < set(line)
    assert result.trained["miou"] == line["test_miou"]
    assert "train miou" in said
    check_pictures(tmp_path / "examples")
    if method == "sgs":
        scalings = read_lines(tmp_path / "scalings.jsonl")[-1]["scalings"]
        assert {"backbone.conv1", "backbone.layer3.0.conv2", "head.0", "auxiliary.0"} < set(scalings)
        assert not any("pyramid" in name or "downsample" in name for name in scalings)
    # What is reported is what is saved.
    dataset, model = load_masks(tiny_segmentation(tmp_path, root).data), load_model(tmp_path)
    right = pixels = 0
    with torch.no_grad():
        for images, masks in eval_batches(dataset, 2):
            right += int((model(images).argmax(1) == masks).sum())
            pixels += int((masks != 255).sum())
    assert result.test["allacc"] == pytest.approx(right / pixels, abs=2e-3)


def test_stopped_anywhere_it_goes_on_bit_for_bit(root, tmp_path):
    assert_resumes(lambda out: tiny_segmentation(out, root, "sgs"), tmp_path, 1, 3)


@pytest.mark.slow
def test_killed_and_resumed_with_workers_bit_for_bit(root, tmp_path):
    """Files that are decoded by other processes, and a process that is killed without a word."""
    options = {"data": {"name": "cityscapes", "batch_size": 2}, "budget": {"checkpoint_steps": 1}}
    quietly(tiny_segmentation(tmp_path / "whole", root, "sgs", **options))
    config = tiny_segmentation(tmp_path / "run", root, "sgs", **options, machine={"workers": 1})
    process = Process(config, function=killed_after_three_steps)
    assert process.wait()[0] == -signal.SIGKILL
    assert Process(config, function=train_quietly).wait()[0] == 0
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def killed_after_three_steps(config):
    with at_step(4, kill):
        quietly(config)


def without_batch_statistics(config):
    """Two processes see other batches than one, which batch normalization and dropout would show."""
    build_model = Segmentation.build_model

    def build(self, **options):
        model = build_model(self, **options)
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.eval()
                module.train = lambda mode=True: None
            elif isinstance(module, torch.nn.Dropout2d):
                module.p = 0.0
        return model

    Segmentation.build_model = build
    return train_quietly(config)


def test_two_processes_keep_the_same_books_as_one(root, tmp_path):
    """Images have different numbers of pixels without a class: each pixel must count the same."""
    options = {"data": {"limit": 9, "batch_size": 4}, "optimizer": {"lr": 1e-3, "head_factor": 2}}
    one = tiny_segmentation(tmp_path / "one", root, **options)
    assert Process(one, function=without_batch_statistics).wait()[0] == 0
    assert codes(start_ranks(tiny_segmentation(tmp_path / "two", root, **options), without_batch_statistics)) == [0, 0]
    lines = [read_lines(tmp_path / name / "metrics.jsonl") for name in ("one", "two")]
    for a, b in zip(*lines, strict=True):
        assert b == pytest.approx(a, rel=2e-3, abs=1e-5)
        assert b["train_loss"] == pytest.approx(a["train_loss"], rel=1e-5)
        assert b["test_loss"] == pytest.approx(a["test_loss"], rel=1e-4)
    initial = Segmentation(one, torch.device("cpu"))
    torch.manual_seed(one.seed)
    before, after = initial.build_model().state_dict(), weights(tmp_path / "one")
    for name, value in weights(tmp_path / "two").items():
        moved = (after[name].double() - before[name].double()).norm()
        assert (value.double() - after[name].double()).norm() <= 1e-3 * moved + 1e-6, name


@pytest.mark.slow
def test_sharded_it_learns_what_ddp_learns_and_goes_on_bit_for_bit(root, tmp_path):
    """FSDP: heads with a learning rate of their own, and an auxiliary head that tests do not call."""
    options = {"epochs": 4, "machine": {"strategy": "fsdp"}}
    assert codes(start_ranks(tiny_segmentation(tmp_path / "ddp", root, "sgs", epochs=4))) == [0, 0]
    assert codes(start_ranks(tiny_segmentation(tmp_path / "whole", root, "sgs", **options))) == [0, 0]
    lines = [read_lines(tmp_path / name / "metrics.jsonl") for name in ("ddp", "whole")]
    for a, b in zip(*lines, strict=True):
        assert b["train_loss"] == pytest.approx(a["train_loss"], rel=1e-3)
    config = tiny_segmentation(tmp_path / "run", root, "sgs", **options)
    assert codes(start_ranks(config, stop_after_seven_steps)) == [143, 143]
    assert codes(start_ranks(config)) == [0, 0]
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert json.loads((tmp_path / "run" / "examples" / "examples.json").read_text())["examples"]


@pytest.mark.slow
def test_onnx_computes_the_same(root, tmp_path):
    quietly(tiny_segmentation(tmp_path, root, "sgs"))
    session = onnxruntime.InferenceSession(export_onnx(tmp_path), providers=["CPUExecutionProvider"])
    images = torch.randn(3, 3, 40, 56)
    (found,) = session.run(None, {"images": images.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(found, load_model(tmp_path)(images).numpy(), rtol=1e-3, atol=1e-3)


def save_torchvision(path, wrapper):
    models = pytest.importorskip("torchvision.models", exc_type=ImportError)
    state = models.resnet18(weights=None).state_dict()
    if wrapper:
        state = {wrapper: {f"module.{name}": value for name, value in state.items()}, "epoch": 3}
    torch.save(state, path)


@pytest.mark.parametrize("wrapper", [None, "state_dict"])
def test_the_backbone_of_a_torchvision_checkpoint(wrapper, root, tmp_path):
    save_torchvision(tmp_path / "resnet18.pth", wrapper)
    model = {"width": 1.0, "backbone": tmp_path / "resnet18.pth"}
    config = tiny_segmentation(tmp_path / "run", root, model=model)
    runtime = Runtime(config.machine)
    start = read_start_weights(config, print)
    network = Learner(config, runtime, Segmentation(config, runtime.device), start).module
    saved = torch.load(tmp_path / "resnet18.pth", weights_only=True)
    saved = {name.removeprefix("module."): value for name, value in saved.get(wrapper, saved).items()}
    found = network.backbone.state_dict()
    assert found.keys() == {name for name in saved if not name.startswith("fc.")}
    assert all(torch.equal(value, saved[name]) for name, value in found.items())


def test_the_backbone_of_a_classification_run(root, tmp_path):
    data = {"name": "fashion-mnist-mini", "limit": 64, "test_limit": 10}
    classifier = {"name": "resnet18-imagenet", "width": 1 / 16}
    quietly(tiny(tmp_path / "pre", "sgs", epochs=2, model=classifier, data=data))
    options = {"model": {"backbone": tmp_path / "pre"}, "optimizer": {"lr": 1e-30, "weight_decay": 0.0}, "epochs": 1}
    with pytest.raises(ConfigError, match=r"--model.backbone: 'conv1.weight' is 4×1×7×7 in .*pre, but 4×3×7×7"):
        quietly(tiny_segmentation(tmp_path / "grey", root, **options))  # Fashion-MNIST is grey
    assert not (tmp_path / "grey").exists()
    saved = colour_(tmp_path / "pre")
    _, said = quietly(tiny_segmentation(tmp_path / "run", root, **options))
    assert "has not finished" not in said
    found = weights(tmp_path / "run")
    for name, value in saved.items():
        if not name.startswith("fc.") and "running" not in name and "num_batches" not in name:
            torch.testing.assert_close(found[f"backbone.{name}"], value)


def test_a_backbone_that_is_not_finished_is_told(root, tmp_path):
    classifier = {"name": "resnet18-imagenet", "width": 1 / 16}
    stop_at(1, tiny(tmp_path / "pre", epochs=2, model=classifier, data={"limit": 64, "test_limit": 10}))
    colour_(tmp_path / "pre")
    _, said = quietly(tiny_segmentation(tmp_path / "run", root, model={"backbone": tmp_path / "pre"}, epochs=1))
    assert f"the run in {tmp_path / 'pre'} has not finished" in " ".join(said.split())


def colour_(folder):
    """Make the stem of a run for grey images one for colour."""
    state = read_checkpoint(folder / "checkpoint.pt")
    state["model"]["conv1.weight"] = state["model"]["conv1.weight"].expand(-1, 3, -1, -1).contiguous() / 3
    save_checkpoint(folder, state)
    return state["model"]


def test_a_run_goes_on_without_what_its_backbone_came_from(root, tmp_path):
    path = tmp_path / "resnet18.pth"
    torch.save(create_model("resnet18-imagenet", width=1 / 16).state_dict(), path)
    options = {"model": {"backbone": path}}
    quietly(tiny_segmentation(tmp_path / "whole", root, **options))
    stop_at(2, tiny_segmentation(tmp_path / "run", root, **options))
    path.unlink()
    resume(tmp_path / "run", console=SILENT)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert load_model(tmp_path / "run") is not None


def test_backbones_that_cannot_be_read(root, tmp_path):
    def attempt(path, error, message):
        with pytest.raises(error, match=message):
            quietly(tiny_segmentation(tmp_path / "run", root, model={"backbone": path}))

    attempt(tmp_path / "nothing.pth", ConfigError, r"nothing.pth not found; pass the folder of a run or a .pth")
    (tmp_path / "text.pth").write_text("no weights")
    attempt(tmp_path / "text.pth", ConfigError, r"cannot read weights from .*text.pth")
    torch.save({"model": {"a": 1}}, tmp_path / "other.pth")
    attempt(tmp_path / "other.pth", ConfigError, r"other.pth does not hold a state_dict")
    torch.save(torch.nn.Linear(1, 1), tmp_path / "pickle.pth")
    attempt(tmp_path / "pickle.pth", ConfigError, r"cannot read weights from .*pickle.pth")
    (tmp_path / "empty").mkdir()
    attempt(tmp_path / "empty", ConfigError, r"empty is not a run's folder")
    quietly(tiny(tmp_path / "branches", "dbb", epochs=1))
    attempt(tmp_path / "branches", ConfigError, r"branches was trained with dbb, .* trained with baseline or sgs")
    quietly(tiny(tmp_path / "pre", epochs=1))
    (tmp_path / "pre" / "checkpoint.pt").unlink()
    attempt(tmp_path / "pre", CheckpointError, r"--model.backbone: .*pre has a result, but no weights")
    (tmp_path / "pre" / "result.json").unlink()
    attempt(tmp_path / "pre", CheckpointError, r"--model.backbone: .*pre has no checkpoint yet; train it first")
    assert not (tmp_path / "run").exists()  # still free for the right one
