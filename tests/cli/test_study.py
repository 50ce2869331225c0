"""`spatialgrad study`: list, show, status, and commands that are refused."""

import pytest

from spatialgrad.cli import launching
from spatialgrad.cli.launching import LaunchOptions
from spatialgrad.cli.study import describe_study
from spatialgrad.studies.registry import get_study
from spatialgrad.train.config import MachineConfig
from support.studies import console, registered, run_here, tiny_study


@pytest.fixture
def study(command):
    """`spatialgrad study ...` in which a tiny study is known."""

    def run(*arguments):
        with registered(tiny_study()):
            return command("study", *arguments)

    return run


def test_list(study):
    code, said = study("list")
    assert code == 0
    assert "cifar                Table 1" in said
    assert "pocket: 8 runs" in said


def test_show(study):
    code, said = study("show", "cifar")
    assert code == 0
    expected = "94.97 ± 0.06, 9.4 GPU hours, 728 M MACs, 34.7 M parameters (Huang et al. 2022 (DyRep))"
    assert expected in " ".join(said.split())
    assert "\n  budget: epochs 600, " in said
    code, said = study("show", "optimizers", "--scale", "paper", "--only", "vgg adam sgs")
    assert code == 0
    assert "tuned by the search vgg11-adam" in said
    assert "Beyond the paper" in said
    assert "search vgg11-adam: optimizer.lr in 0.0001, 0.0003, 0.001, 0.003" in said


def test_show_counts_what_was_chosen():
    out = console()
    out.print(describe_study(get_study("optimizers"), "paper", ("vgg-11 adagrad", "vgg-11 adagrad*")))
    said = out.file.getvalue()
    assert "5 arms, 3 seeds, 21 runs in total" in said  # 12 points, and 3 seeds of 3 different arms
    assert said.count("search vgg11-adagrad: ") == 1
    assert "vgg11-adam:" not in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "tiny", "--scale", "pocket", "--only", "dbb"), "choose from\n  Fashion-MNIST · Origin"),
        (("run", "tiny", "--scale", "pocket", "--jobs", "0"), "--jobs must be at least 1, got 0"),
        (("run", "tiny", "--scale", "pocket", "--seeds", "0"), "--seeds must be at least 1, got 0"),
    ],
)
def test_wrong_commands(arguments, words, study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, said = study(*arguments)
    assert code == 2
    assert words in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--cpus-per-run=2", "--gpus-per-run=1", "--ray-address=auto"])
def test_options_of_ray_are_not_ignored(option, study, tmp_path):
    # Without its data nothing would start in any case.
    places = ("--out", tmp_path / "x", "--data.root", tmp_path)
    code, said = study("run", "cifar", "--scale", "desk", *places, option)
    assert code == 2
    assert "can only be used with --launcher ray" in said
    assert not (tmp_path / "x").exists()


def test_status_by_name_shows_every_scale_that_was_run(study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_here(tiny_study(), tmp_path / "studies/tiny-pocket", only=["origin"])
    code, said = study("status", "tiny")
    assert code == 0
    assert "1 run, 1 finished" in said
    assert study("status", "studies/tiny-pocket") == (code, said)
    code, said = study("status", "tinny")
    assert code == 2
    assert "studies/ contains tiny-pocket" in said


def test_by_default_every_gpu_has_its_run(monkeypatch):
    monkeypatch.setattr(launching, "visible_gpus", lambda: list("01234567"))
    assert LaunchOptions().slots(MachineConfig()) == 8
    assert LaunchOptions(processes=4).slots(MachineConfig()) == 2
    assert LaunchOptions(jobs=3).slots(MachineConfig()) == 3
    assert LaunchOptions().slots(MachineConfig(accelerator="cpu")) == 1


def test_threads_are_an_equal_share_of_the_cores(monkeypatch):
    monkeypatch.setattr(launching, "usable_cores", lambda: 8)
    cpu = MachineConfig(accelerator="cpu")
    assert LaunchOptions(jobs=2, processes=2).within(cpu).threads == 2
    assert LaunchOptions(threads=3).within(cpu).threads == 3
    assert LaunchOptions(launcher="ray").within(cpu).threads is None  # its nodes may have other numbers of cores
