"""Studies on a real Ray cluster on this machine, with a worker that is killed in the middle."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from spatialgrad.train import Run
from spatialgrad.train.jsonfiles import read_lines
from spatialgrad.train.locks import is_locked
from support.ray import environment, parent, start, trainer_in, wait_while_running
from support.studies import sessions, tiny_config
from support.training import assert_same_run, quietly, wait_for

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

CLUSTER = """
import ray
options = {"include_dashboard": False, "object_store_memory": 80 << 20, "log_to_driver": False}
started = ray.init("local", num_cpus=2, num_gpus=0, **options)
print("address", started.address_info["gcs_address"], flush=True)
input()
"""


@pytest.fixture(scope="module")
def cluster():
    """The address of a cluster with two CPUs, which ends with the process that has started it."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    )
    address = process.stdout.readline().split()
    assert address[:1] == ["address"]
    yield address[1]
    process.communicate("\n", timeout=120)


def test_a_killed_worker_is_replaced(cluster, tmp_path):
    folder = tmp_path / "study"
    run = folder / "runs/fashion-mnist-sgs-ours/seed0"
    process = start(cluster, folder, "--only", "sgs", "wild")
    wait_while_running(process, lambda: is_locked(run) and len(read_lines(run / "metrics.jsonl")) > 2)
    os.kill(parent(trainer_in(run)), signal.SIGKILL)  # Ray's worker; the training notices, saves and ends
    said, error = process.communicate(timeout=400)
    assert process.returncode == 5, error
    assert "1 of 2 runs failed" in error
    assert "wild · seed 0: FAILED: the loss became non-finite" in said  # no reason to try again
    assert sessions(run) == 2
    assert "after step" in (run / "output.txt").read_text()
    quietly(replace(tiny_config("sgs", epochs=12), out=tmp_path / "plain"))
    assert_same_run(run, tmp_path / "plain")
    assert Run.open(run).result is not None
    assert json.loads((folder / "runs/fashion-mnist-wild/seed0/failure.json").read_text())["exit_code"] == 3


def test_ctrl_c_saves_on_the_cluster(cluster, tmp_path):
    folder = tmp_path / "study"
    run = folder / "runs/fashion-mnist-origin/seed0"
    process = start(cluster, folder, "--only", "origin")
    wait_while_running(process, lambda: is_locked(run) and len(read_lines(run / "metrics.jsonl")) > 1)
    process.send_signal(signal.SIGINT)
    watchdog = threading.Timer(200, process.kill)
    watchdog.start()
    _, error = process.communicate()
    watchdog.cancel()
    assert process.returncode == 130, error
    wait_for(lambda: not is_locked(run))
    assert (run / "checkpoint.pt").exists()
    assert not (run / "failure.json").exists()


def test_what_never_fits_is_refused(cluster, tmp_path):
    process = start(cluster, tmp_path, "--cpus-per-run", "64")
    _, error = process.communicate(timeout=200)
    assert process.returncode == 2
    assert "a run needs 64 CPUs and 0 GPUs, but no node of the cluster has more than 2 CPUs and 0 GPUs" in error
