"""`spatialgrad model`, and external networks on the command line."""

import re
import subprocess
import sys

import pytest

from spatialgrad.train import Run
from support.common import python_environment
from support.external import user_module  # noqa: F401 (fixture)


@pytest.fixture(autouse=True)
def _narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def table(said):
    """The rows: whether it takes part, or the number of the reason, by convolution."""
    rows = re.findall(r"^(✓|· \(\d+\)) +(\S+)", said, re.MULTILINE)
    return {name: mark for mark, name in rows}


def test_list(command):
    code, said = command("model", "list")
    assert code == 0
    assert re.search(r"^vgg16-slim +classification +32×32 +Simonyan & Zisserman, ICLR 2015$", said, re.MULTILINE)
    assert "pspnet" in said
    assert "package.module:function" in said
    assert max(map(len, said.splitlines())) <= 80


def test_list_of_a_library(command):
    assert command("model", "list", "timm:resnet18*") == (0, "timm:resnet18\ntimm:resnet18d\n")
    assert "torchvision:resnet18\n" in command("model", "list", "torchvision:")[1]


def test_list_of_nothing(command):
    code, said = command("model", "list", "resnot*")
    assert code == 2
    assert "no network matches 'resnot*'" in said
    code, said = command("model", "list", "torch:*")
    assert code == 2
    assert "only the networks of timm and torchvision" in said


def test_show(command):
    code, said = command("model", "show", "resnet18-imagenet", "--method", "dbb")
    assert code == 0
    assert "resnet18-imagenet for images of 3×224×224" in said
    assert "network     11,689,512 parameters, 1,814,073,344 MACs" in said
    assert "with dbb    26,288,296 parameters, 4,126,183,424 MACs, until merged" in said
    rows = table(said)
    assert len(rows) == 20
    assert sum(mark == "✓" for mark in rows.values()) == 16
    assert "16 of 20 convolutions take part in dbb." in said
    assert "(1) 7×7 kernel, which DBB does not replace" in said
    assert "(2) 1×1 kernel, which DBB does not replace" in said
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize(
    ("method", "taking_part", "reason"),
    [
        ("sgs", ["first", "second"], "1×1 kernel, which has no spatial positions to scale"),
        ("sgs-static", ["first", "second"], "1×1 kernel"),
        ("acb", ["first", "second"], "1×1 kernel, which ACB does not replace"),
        ("repopt", ["first", "second"], "1×1 kernel, which RepOpt does not replace"),
        ("lemma", ["first", "second"], "1×1 kernel, which Branches does not replace"),
        ("dyrep", ["first", "second"], "1×1 kernel: only kernels with both sides larger than 1 grow"),
        ("baseline", [], "plain training"),
    ],
)
@pytest.mark.usefixtures("user_module")
def test_show_of_a_function(method, taking_part, reason, command):
    flags = ["--num-classes", "10", "--image-size", "28", "--in-channels", "1", "--model.options", "traceable=False"]
    code, said = command("model", "show", "usernets:build", "--method", method, *flags)
    assert code == 0, said
    rows = table(said)
    assert [name for name, mark in rows.items() if mark == "✓"] == taking_part
    assert list(rows) == ["first", "second", "point"]
    assert reason in said
    assert ("until merged" in said) == (method == "acb")


def test_show_of_unusual_convolutions(command, user_module):  # noqa: F811
    (user_module / "odd.py").write_text(ODD)
    try:
        code, said = command("model", "show", "odd:build", "--num-classes", "3", "--image-size", "16")
        assert code == 0
        assert "not in a convolution module" in " ".join(said.split())
        assert "transposed convolution" in said
        assert {name: mark == "✓" for name, mark in table(said).items()} == {
            **{"stem": True, "up": False, "frozen": False, "kernel": False}
        }
        code, said = command(
            "model", "show", "odd:build", "--num-classes", "3", "--image-size", "16", "--method", "dyrep"
        )
        assert code == 0
        assert "its weight is not trained" in said
    finally:
        sys.modules.pop("odd", None)


ODD = """
import torch
from torch import nn
from torch.nn import functional as F


class Odd(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 5)
        self.up = nn.ConvTranspose2d(4, 4, 2)
        self.frozen = nn.Conv2d(4, 4, 3).requires_grad_(False)
        self.kernel = nn.Parameter(torch.rand(num_classes, 4, 3, 3))

    def forward(self, x):
        return F.conv2d(self.frozen(self.up(self.stem(x))), self.kernel).mean((2, 3))


def build(num_classes):
    return Odd(num_classes)
"""


def test_show_of_a_library(command):
    code, said = command("model", "show", "timm:test_resnet", "--method", "repvgg")
    assert code == 0
    assert "timm:test_resnet for images of 3×160×160" in said
    assert "✓" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vgg12"], "did you mean 'vgg"),
        (["timm:resnet18dd"], "did you mean 'timm:resnet18d'"),
        (["vgg11", "--method", "dbbb"], "did you mean 'dbb'"),
        (["vgg11", "--image-size", "0"], "--image-size must be at least 1"),
        (["vgg11", "--model.options", "x=1"], "--model.options x=1"),
        (["timm:test_vit", "--image-size", "20"], "does not accept images of 3×20×20"),
        (["timm:test_vit", "--method", "dbb"], "--method dbb cannot train timm:test_vit"),
        (["resnet18", "--model.width", "0"], "--model.width must be positive"),
    ],
)
def test_what_cannot_be_shown(arguments, message, command):
    code, said = command("model", "show", *arguments)
    assert code == 2
    assert message in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_the_whole_command_in_a_users_repository(user_module):  # noqa: F811
    """As the installed command starts: the working directory is not in Python's path."""
    start = (
        "import sys; sys.path[:] = [p for p in sys.path if p]; from spatialgrad.cli.main import main; sys.exit(main())"
    )
    arguments = [
        *("train", "--model", "usernets:build", "--model.options", "channels=3", "traceable=True"),
        *("--dataset", "fashion-mnist-mini", "--data.limit", "64", "--data.test-limit", "32", "--epochs", "1"),
        *("--batch-size", "32", "--method", "baseline", "--machine.threads", "1", "--out", "run"),
    ]
    command = [sys.executable, "-P", "-c", start, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=python_environment())
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert Run.open(user_module / "run").config.model.options == ("channels=3", "traceable=True")
