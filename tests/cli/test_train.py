"""`spatialgrad train`, `resume` and `export`: flags, suggestions, messages and exit codes."""

import json
import re
import subprocess
import sys

import pytest

from spatialgrad import train
from spatialgrad.train import Run, TrainConfig
from spatialgrad.train.config import flatten, to_dict
from spatialgrad.train.flags import flag
from support.common import python_environment
from support.training import SILENT, quietly, tiny


def test_the_command_of_the_readme(parsed):
    config = parsed("--model", "vgg11", "--dataset", "cifar100", "--method", "sgs")
    assert config == TrainConfig()
    assert (config.model.name, config.data.name, config.method.name) == ("vgg11", "cifar100", "sgs")


def test_short_and_long_flags(parsed, tmp_path):
    config = parsed(
        *("--model", "resnet18", "--model.width", "0.5", "--dataset", "cifar10", "--epochs", "7", "--seed", "3"),
        *("--batch-size", "64", "--optimizer.name", "adam", "--optimizer.lr", "0.01", "--scaling.apply", "update"),
        *("--machine.precision", "bf16-mixed", "--machine.devices", "2", "--data.limit", "100", "--tensorboard"),
        *("--out", str(tmp_path), "--schedule.milestones", "10", "20"),
    )
    assert (config.model.name, config.model.width, config.data.name) == ("resnet18", 0.5, "cifar10")
    assert (config.budget.epochs, config.seed, config.data.batch_size, config.data.limit) == (7, 3, 64, 100)
    assert (config.optimizer.name, config.optimizer.lr, config.scaling.apply) == ("adam", 0.01, "update")
    assert (config.machine.precision, config.machine.devices) == ("bf16-mixed", 2)
    assert config.tensorboard
    assert config.folder == tmp_path
    assert config.schedule.milestones == (10, 20)


@pytest.mark.parametrize("flag", [["--recipe", "cifar_table1"], ["--recipe=cifar-table1"]])
def test_a_recipe_and_what_differs_from_it(parsed, flag):
    config = parsed("--epochs", "5", *flag, "--scaling.every", "5")
    assert config.model.name == "vgg16-slim"
    assert config.optimizer.weight_decay == 1e-4
    assert (config.budget.epochs, config.scaling.every, config.scaling.batches) == (5, 5, 20)


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["--method", "db"], "dbb"),
        (["--optimizer.name", "adagard"], "adagrad"),
        (["--optimizer.learning-rate", "0.1"], "--optimizer."),
        (["--epoch", "0.1"], "--epochs"),
        (["--scaling.everry", "0.1"], "--scaling.every"),
    ],
)
def test_what_is_unknown_gets_the_nearest_suggested(arguments, suggestion, command):
    code, said = command("train", *arguments)
    assert code == 2
    assert suggestion in said
    assert "Traceback" not in said


@pytest.mark.parametrize("arguments", [["--optimizer.lr", "-1"], ["--epochs", "0"], ["--epochs", "many"]])
def test_wrong_values(arguments, command):
    code, said = command("train", *arguments)
    assert code == 2
    assert "__" not in said  # no names from the parser's inside
    assert "Traceback" not in said


def test_help_explains_every_field(command):
    code, said = command("train", "--help-all")
    assert code == 0
    for name in flatten(to_dict(TrainConfig())):
        assert re.search(rf"{re.escape(flag(name))}[ ,]", said), name
    assert "cifar_table1" in said
    assert "(default: 200)" in said


def test_help_of_a_recipe_shows_its_values(command):
    assert "(default: 600)" in command("train", "--recipe", "cifar_table1", "--help")[1]


def test_another_config(tmp_path, command):
    quietly(tiny(tmp_path, epochs=1))
    arguments = ["train", "--dataset", "fashion-mnist-mini", "--data.limit", "50", "--out", tmp_path]
    code, said = command(*arguments)
    assert code == 78
    assert "--data.limit: 150 there, 50 requested" in said


def test_without_fabric_the_way_out_is_named(tmp_path, command, monkeypatch):
    for name in ("loop", "learner", "evaluation", "runtime"):
        monkeypatch.delitem(sys.modules, f"spatialgrad.train.{name}", raising=False)
        monkeypatch.delattr(f"spatialgrad.train.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    code, said = command("resume", tmp_path)
    assert code == 1
    assert "[train]: " in said


def test_a_run_that_diverges(tmp_path, command):
    config = tiny(tmp_path, optimizer={"lr": 1e30})
    with pytest.raises(train.DivergedError):
        train.train(config, console=SILENT)
    code, said = command("resume", tmp_path)
    assert code == 3
    assert "learning rate" in said


def test_export(tmp_path, command):
    import torch

    quietly(tiny(tmp_path, "dbb", epochs=1))
    code, said = command("export", tmp_path)
    assert code == 0
    assert said.strip() == str(tmp_path / "model.pt")
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert state["state_dict"].keys() == train.load_model(tmp_path).state_dict().keys()
    code, said = command("export", tmp_path / "nothing", "--onnx")
    assert code == 2
    code, said = command("export", tmp_path, "--int8", "--calibration-images", 0)
    assert code == 2
    assert "--calibration-images must be at least 1, got 0" in said


def test_the_whole_command_in_a_process_of_its_own(tmp_path):
    """As a user types it: standard output is not a terminal, so there are plain lines."""
    arguments = [
        *(sys.executable, "-m", "spatialgrad", "train", "--recipe", "pocket", "--model.width", "0.0625"),
        *("--data.limit", "128", "--data.test-limit", "100", "--epochs", "2", "--method", "baseline"),
        *("--machine.threads", "1", "--out", str(tmp_path / "run")),
    ]
    environment = {**python_environment(), "PYTHONWARNINGS": "default"}
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith("vgg11 on Fashion-MNIST, 5k/1k subset")
    assert sum(line.startswith("epoch ") for line in lines) == 2
    assert "\x1b" not in done.stdout
    assert Run.open(tmp_path / "run").config.method.name == "baseline"
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["command"][1] == "train"
