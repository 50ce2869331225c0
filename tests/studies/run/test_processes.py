"""Studies through the command line and real processes, some of which are killed."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from spatialgrad.cli import commands
from spatialgrad.cli.study_tables import describe_status, describe_study
from spatialgrad.studies.record import read_study
from spatialgrad.studies.registry import get_study
from spatialgrad.studies.run import worker
from spatialgrad.studies.run.local import failure_message, share_of_gpus
from spatialgrad.studies.run.status import run_status
from spatialgrad.train import read_lines, read_result
from spatialgrad.train.runs.folder import is_locked
from support.studies import console, results, run_command, run_here, sessions, tiny_config, tiny_study
from support.training import Process, assert_same_run, quietly, wait_for

LONG = {"epochs": 12}


def study(options, *arguments, environment=None):
    return Process(options, "study", *arguments, function=run_command, environment=environment)


def run(options, folder, *more):
    return study(options, "run", "tiny", "--scale", "pocket", "--out", folder, "--threads", "1", *more)


def holder(folder):
    """The process that trains in a folder."""
    words = (folder / "run.lock").read_text().split()
    return int(words[1]) if words else None  # it has the lock, and has not said so yet


def trains(folder, epochs=1):
    return is_locked(folder) and len(read_lines(folder / "metrics.jsonl")) >= epochs


@pytest.mark.slow
def test_end_to_end(tmp_path):
    """Searches, arms, a run that fails; the exit code, what is told, and what the second command does."""
    options, folder = {"failing": True, "tuned": True, "failing_points": False}, tmp_path / "study"
    code, said, error = run(options, folder, "--jobs", 2, "--note", "a <note>").wait(300)
    assert code == 5, error
    assert "A tiny study (no table), scale pocket" in said
    assert "6 runs." in said
    assert said.count("FAILED: the loss became non-finite") == 1
    assert "1 of 6 runs have no result:" in error
    assert read_study(folder).note == "a <note>"
    assert len(results(folder)) == 5
    finished = folder / "runs/fashion-mnist-sgs-ours/seed0"
    assert "epoch 2/2" in (finished / "output.txt").read_text()
    quietly(replace(tiny_config("sgs"), out=tmp_path / "plain"))
    assert_same_run(finished, tmp_path / "plain")

    before = results(folder)
    code, said, error = run(options, folder, "--jobs", 2, "--only", "origin", "wild").wait(300)
    assert code == 5
    assert "2 runs, 1 of them finished already." in said
    assert results(folder) == before

    code, said, error = study(options, "status", folder).wait()
    assert code == 0, error
    assert "6 runs, 5 finished, 1 failed" in said
    assert "best: alpha" in said
    assert f"failed: {folder}/runs/fashion-mnist-wild/seed0" in said
    assert f"{100 * read_result(finished).value:.2f} %" in said


@pytest.mark.slow
def test_interrupted_by_ctrl_c_and_by_kills(tmp_path):
    """SIGINT to the runner, SIGKILL to the runner, SIGKILL to a run: in the end as if nothing had happened."""
    folder = tmp_path / "study"
    origin, sgs = (folder / f"runs/fashion-mnist-{name}/seed0" for name in ("origin", "sgs-ours"))

    process = run(LONG, folder, "--jobs", 1)
    wait_for(lambda: trains(sgs, 2), 120)
    process.signal(signal.SIGINT)
    code, _, error = process.wait()
    assert code == 130
    assert "stopped with 1 of 2 runs to do; those that were running have saved" in error
    assert run_status(sgs).state == "stopped"
    done = results(folder)
    assert list(done) == [origin / "result.json"]

    epoch = run_status(sgs).epoch
    process = run(LONG, folder, "--jobs", 1)
    wait_for(lambda: trains(sgs, epoch + 1), 120)
    trainer = holder(sgs)
    process.kill()
    wait_for(lambda: not is_locked(sgs), 60)  # no orphan goes on, and it has saved
    wait_for(lambda: not os.path.exists(f"/proc/{trainer}"), 60)
    assert run_status(sgs).state == "stopped"

    process = run(LONG, folder, "--jobs", 1)
    wait_for(lambda: trains(sgs) and holder(sgs) not in (None, trainer), 120)
    os.kill(holder(sgs), signal.SIGKILL)
    code, said, error = process.wait()
    assert code == 5
    assert "FAILED: its process was ended by SIGKILL" in said
    assert run_status(sgs).state == "failed"

    code, said, error = run(LONG, folder, "--jobs", 1).wait()
    assert code == 0, error
    assert "All 2 runs are finished" in said
    assert done.items() <= results(folder).items()
    assert sessions(origin) == 1
    assert sessions(sgs) >= 3
    quietly(replace(tiny_config("sgs", **LONG), out=tmp_path / "plain"))
    assert_same_run(sgs, tmp_path / "plain")


@pytest.mark.slow
def test_several_processes_per_run(tmp_path):
    code, _, error = run({}, tmp_path / "study", "--processes", 2, "--only", "sgs", "--accelerator", "cpu").wait(240)
    assert code == 0, error
    folder = tmp_path / "study/runs/fashion-mnist-sgs-ours/seed0"
    output = (folder / "output.txt").read_text()
    assert "2 × cpu" in output
    assert output.count("epoch 2/2") == 1
    assert read_result(folder).steps == 10


@pytest.mark.slow
def test_a_real_study(tmp_path):
    command = [
        *(sys.executable, "-m", "spatialgrad", "study", "run", "architectures", "--scale", "pocket"),
        *("--only", "shufflenet", "--out", str(tmp_path / "study"), "--threads", "1", "--jobs", "2"),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "All 2 runs are finished" in done.stdout
    record = read_study(tmp_path / "study")
    assert [arm.label for arm in record.arms] == ["Baseline", "SGS (ours)"]
    for arm in record.arms:
        assert read_result(tmp_path / "study" / arm.runs[0].folder).model == "shufflenet"
    assert (tmp_path / "study" / record.arms[1].runs[0].folder / "scalings.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("run", "tini", "--scale", "pocket"), 2, "did you mean 'tiny'?"),
        (("run", "tiny", "--scale", "pocket", "--only", "dbb"), 2, "there are\n  Fashion-MNIST · Origin"),
        (("run", "tiny", "--scale", "pocket", "--jobs", "0"), 2, "--jobs: 0 must be at least 1"),
        (("run", "tiny", "--scale", "pocket", "--seeds", "0"), 2, "number of seeds"),
        (("status", "tiny"), 2, "there is no study in tiny"),
        (("status", "tinny"), 2, "did you mean 'tiny'?"),
        (("show", "cifer"), 2, "did you mean 'cifar'?"),
    ],
)
def test_wrong_commands(arguments, code, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_command({}, "study", *arguments) == code
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_list_and_show(capsys):
    assert run_command({}, "study", "list") == 0
    said = capsys.readouterr().out
    assert "cifar                Table 1" in said
    assert "pocket: 8 runs" in said
    assert run_command({}, "study", "show", "cifar") == 0
    said = capsys.readouterr().out
    assert "94.97 ± 0.06, 9.4 GPU hours, 728 M MACs, 34.7 M parameters (Huang et al. 2022 (DyRep))" in " ".join(
        said.split()
    )
    assert "budget.epochs 600" in said
    assert run_command({}, "study", "show", "optimizers", "--scale", "paper", "--only", "vgg adam sgs") == 0
    said = capsys.readouterr().out
    assert "tuned by the search vgg11-adam" in said
    assert "Beyond the paper" in said
    assert "search vgg11-adam: optimizer.lr in 0.0001, 0.0003, 0.001, 0.003" in said


def test_a_worker_without_a_run(tmp_path, capsys):
    assert worker.main([str(tmp_path)]) == 2
    assert "is not a run's folder" in capsys.readouterr().err


def test_why_a_run_has_failed(tmp_path):
    assert failure_message(tmp_path, -9) == "its process was ended by SIGKILL"
    assert "exit code 7 and said nothing" in failure_message(tmp_path, 7)
    (tmp_path / "output.txt").write_text("old\nepoch 1/2\nspatialgrad: the disk is full.\nRemove something.\n")
    assert failure_message(tmp_path, 74) == "the disk is full.\nRemove something."
    (tmp_path / "output.txt").write_text("old\n" + "".join(f"line {number}\n" for number in range(9)) + "KeyError: 1\n")
    assert failure_message(tmp_path, 1).splitlines() == [*(f"line {number}" for number in range(5, 9)), "KeyError: 1"]
    assert failure_message(tmp_path, 1, offset=len((tmp_path / "output.txt").read_text()) - 12) == "KeyError: 1"


def test_runs_at_once_divide_the_gpus():
    four = ["0", "1", "2", "3"]
    assert [share_of_gpus(four, slot, 1) for slot in range(5)] == [["0"], ["1"], ["2"], ["3"], ["0"]]
    assert [share_of_gpus(four, slot, 2) for slot in range(3)] == [["0", "1"], ["2", "3"], ["0", "1"]]
    assert share_of_gpus(["7"], 1, 2) == ["7"]
    assert share_of_gpus([], 1, 2) == []


def test_missing_data_is_said_before_anything_starts(tmp_path, capsys):
    command = ("study", "run", "cifar", "--scale", "desk", "--out", tmp_path / "study", "--data-root", tmp_path)
    assert run_command({}, *command) == 66
    assert "Download: spatialgrad data get cifar10" in capsys.readouterr().err.replace("cifar100", "cifar10")
    assert not (tmp_path / "study").exists()


def test_status_names_damaged_runs_and_shows_the_others(tmp_path):
    study = tiny_study()
    run_here(study, tmp_path)
    record = read_study(tmp_path)
    (tmp_path / record.arms[0].runs[0].folder / "result.json").write_text("{")
    out = console()
    out.print(describe_status(tmp_path, record))
    said = out.file.getvalue()
    assert "1 damaged" in said
    assert "JSONDecodeError" in said
    assert "accuracy" in said.split("SGS (ours)")[1].splitlines()[0]


def test_show_counts_what_was_chosen():
    out = console()
    out.print(describe_study(get_study("optimizers"), "paper", ("vgg-11 adagrad",)))
    said = out.file.getvalue()
    assert "5 arms, 3 seeds, 21 runs in all" in said  # 12 points, and 3 seeds of 3 different arms
    assert said.count("search vgg11-adagrad: ") == 1
    assert "vgg11-adam:" not in said


@pytest.mark.parametrize("option", ["--cpus-per-run=2", "--gpus-per-run=1", "--ray-address=auto"])
def test_options_of_ray_are_not_ignored(option, tmp_path, capsys):
    # Without its data nothing would start in any case.
    places = ["--out", str(tmp_path / "x"), "--data-root", str(tmp_path)]
    assert commands.run(["study", "run", "cifar", "--scale", "desk", *places, option]) == 2
    assert "goes with --launcher ray only" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
