"""Studies through the command line and real processes, some of which are killed."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from spatialgrad.studies.record import read_study
from spatialgrad.train import Run
from spatialgrad.train.jsonfiles import read_lines
from spatialgrad.train.locks import is_locked
from support.common import python_environment
from support.studies import results, run_command, run_here, sessions, tiny_config, tiny_study
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
    only = ("--only", "sgs", "wild", "tuned")
    code, said, error = run(options, folder, *only, "--jobs", 2, "--note", "a <note>").wait(300)
    assert code == 5, error
    assert "A tiny study (no table), scale pocket" in said
    assert "5 runs." in said
    assert said.count("FAILED: the loss became non-finite") == 1
    assert "1 of 5 runs failed:" in error
    assert read_study(folder).note == "a <note>"
    assert len(results(folder)) == 4
    finished = folder / "runs/fashion-mnist-sgs-ours/seed0"
    assert "epoch 2/2" in (finished / "output.txt").read_text()
    quietly(replace(tiny_config("sgs"), out=tmp_path / "plain"))
    assert_same_run(finished, tmp_path / "plain")

    before = results(folder)
    code, said, error = run(options, folder, "--only", "sgs", "wild").wait(300)
    assert code == 5
    assert "2 runs, 1 of them already finished." in said
    assert results(folder) == before

    code, said, error = study(options, "status", folder).wait()
    assert code == 0, error
    assert "5 runs, 4 finished, 1 failed" in said
    assert "best: alpha" in said
    assert f"failed: {folder}/runs/fashion-mnist-wild/seed0" in said
    assert f"{100 * Run.open(finished).result.value:.2f} %" in said


@pytest.mark.slow
def test_interrupted_by_ctrl_c_and_by_kills(tmp_path):
    """SIGINT to the runner, SIGKILL to the runner, SIGKILL to a run: in the end as if nothing had happened."""
    folder = tmp_path / "study"
    origin, sgs = (folder / f"runs/fashion-mnist-{name}/seed0" for name in ("origin", "sgs-ours"))

    run_here(tiny_study(**LONG), folder, only=["origin"])
    process = run(LONG, folder, "--jobs", 1)
    wait_for(lambda: trains(sgs, 2), 120)
    process.signal(signal.SIGINT)
    code, _, error = process.wait()
    assert code == 130
    assert "stopped with 1 of 2 runs unfinished; the running ones have saved" in error
    assert Run.open(sgs).state == "interrupted"
    done = results(folder)
    assert list(done) == [origin / "result.json"]

    epoch = Run.open(sgs).epoch
    process = run(LONG, folder, "--jobs", 1)
    wait_for(lambda: trains(sgs, epoch + 1), 120)
    trainer = holder(sgs)
    process.kill()
    wait_for(lambda: not is_locked(sgs), 60)  # no orphan keeps running, and it has saved
    wait_for(lambda: not os.path.exists(f"/proc/{trainer}"), 60)
    assert Run.open(sgs).state == "interrupted"

    process = run(LONG, folder, "--jobs", 1)
    wait_for(lambda: trains(sgs) and holder(sgs) not in (None, trainer), 120)
    os.kill(holder(sgs), signal.SIGKILL)
    code, said, error = process.wait()
    assert code == 5
    assert "FAILED: the process was killed by SIGKILL" in said
    assert Run.open(sgs).state == "failed"

    jobs, _ = run_here(tiny_study(**LONG), folder)
    assert len(jobs.finished) == 2
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
    assert Run.open(folder).result.steps == 10


@pytest.mark.slow
def test_a_real_study(tmp_path):
    command = [
        *(sys.executable, "-m", "spatialgrad", "study", "run", "optimizers", "--scale", "pocket"),
        *("--only", "vgg-11 radam ours", "--out", str(tmp_path / "study"), "--threads", "1"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=python_environment(), timeout=300)
    assert done.returncode == 0, done.stderr
    assert "1 run finished" in done.stdout
    (arm,) = read_study(tmp_path / "study").arms
    folder = tmp_path / "study" / arm.runs[0].folder
    assert (arm.label, Run.open(folder).result.model) == ("SGS (ours)", "vgg11")
    assert (folder / "scalings.jsonl").exists()
