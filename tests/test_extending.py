"""docs/extending.md: its commands run, on parts that are outside of the package."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import torch

from spatialgrad.cli.main import main
from spatialgrad.models import create_model
from spatialgrad.reparam import merge, reparameterize_

ROOT = Path(__file__).parents[1]
COMMANDS = re.findall(r"^spatialgrad (.*)$", (ROOT / "docs" / "extending.md").read_text(), re.MULTILINE)
TRAININGS = [command for command in COMMANDS if command.startswith("train")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    shutil.copy(ROOT / "examples" / "extending" / "mine.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.mark.parametrize("command", TRAININGS)
def test_trainings_run(command, folder, capsys):
    limits = ["--data.limit", "200", "--data.test-limit", "100", "--epochs", "2"]
    assert main([*shlex.split(command), "--out", "run", *limits]) == 0, capsys.readouterr().err
    assert (folder / "run" / "result.json").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine:strips", "mine has no 'strips'; did you mean 'stripes'?"),
        ("mine:NOISE", "must return an ImageDataset, not Study"),
    ],
)
def test_a_data_set_that_is_none(name, message, folder, capsys):
    assert main(["train", "--recipe", "pocket", "--dataset", name, "--out", "run"]) != 0
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not (folder / "run").exists()


def test_a_branched_block(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    from mine import WideACB

    model = reparameterize_(create_model("vgg11", num_classes=10, width=1 / 16), WideACB()).eval()
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(merge(model)(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_study(folder, capsys):
    run, report = COMMANDS[-2:]
    assert main([*shlex.split(run), "--seeds", "1", "--only", "plain", "noise"]) == 0, capsys.readouterr().err
    assert main(shlex.split(report)) == 0, capsys.readouterr().err
    assert "noise" in (folder / "studies" / "noise-pocket" / "report" / "index.html").read_text()
