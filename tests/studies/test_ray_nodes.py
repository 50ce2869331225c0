"""Several Ray nodes on this machine: one that is killed, several processes per run, and a head that restarts."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from spatialgrad.studies.ray import POLL
from spatialgrad.train import Run
from spatialgrad.train.checkpoint import has_checkpoint
from spatialgrad.train.jsonfiles import read_lines
from spatialgrad.train.locks import is_locked
from support.ray import environment, parent, start, trainer_in, wait_while_running
from support.studies import sessions, tiny_config
from support.training import assert_same_run, quietly, wait_for

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

NODES = """
import sys
from ray.cluster_utils import Cluster

store = {"object_store_memory": 80 << 20, "num_gpus": 0}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **store})
nodes = [cluster.add_node(num_cpus=int(number), **store) for number in sys.argv[1:]]
cluster.wait_for_nodes()
print("address", cluster.address, flush=True)
for line in sys.stdin:
    if line.strip() == "end":
        break
    cluster.remove_node(nodes.pop() if line.strip() == "kill" else cluster.head_node, allow_graceful=False)
    print("killed", flush=True)
cluster.shutdown()
"""


class Nodes:
    """A head without CPUs and nodes with these numbers of them, which end with the process that has started them."""

    def __init__(self, *cpus):
        command = [sys.executable, "-c", NODES, *map(str, cpus)]
        pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        self.process = subprocess.Popen(command, text=True, env=environment(), **pipes)
        self.address = self._answer("address").split()[1]

    def kill(self, what):
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        self._answer("killed")

    def end(self):
        with self.process:  # closes the pipes and waits
            if self.process.poll() is None:
                self.process.stdin.write("end\n")

    def _answer(self, word):
        for line in self.process.stdout:
            if line.startswith(word):
                return line
        raise AssertionError("the cluster has ended")


@pytest.fixture
def nodes():
    """Start nodes; they end with the test."""
    started = []

    def begin(*cpus):
        started.append(Nodes(*cpus))
        return started[-1]

    yield begin
    for each in started:
        each.end()


def under_way(run):
    return is_locked(run) and len(read_lines(run / "metrics.jsonl")) > 1


def test_a_node_that_is_killed(nodes, tmp_path):
    """Its run resumes on the node that is left."""
    # Long enough for both runs to be under way at the same time, also if a busy machine starts the second one late.
    cluster, folder, epochs = nodes(1, 1), tmp_path / "study", 150
    runs = [folder / f"runs/fashion-mnist-{arm}/seed0" for arm in ("origin", "sgs-ours")]
    process = start(cluster.address, folder, "--only", "origin", "sgs", epochs=epochs)
    wait_while_running(process, lambda: all(under_way(run) for run in runs))
    cluster.kill("kill")
    said, error = process.communicate(timeout=500)
    assert process.returncode == 0, said + error
    assert sorted(sessions(run) for run in runs) == [1, 2]
    for run, method in zip(runs, ("baseline", "sgs"), strict=True):
        quietly(replace(tiny_config(method, epochs=epochs), out=tmp_path / method))
        assert_same_run(run, tmp_path / method)


def test_several_processes_per_run(nodes, tmp_path):
    cluster, folder = nodes(2, 2), tmp_path / "study"
    process = start(cluster.address, folder, "--only", "origin", "sgs", "--processes", "2")
    said, error = process.communicate(timeout=500)
    assert process.returncode == 0, said + error
    for arm in ("origin", "sgs-ours"):
        run = folder / f"runs/fashion-mnist-{arm}/seed0"
        assert Run.open(run).result is not None
        assert json.loads((run / "environment.json").read_text())["processes"] == 2


def test_a_head_that_restarts(nodes, tmp_path, monkeypatch):
    """Without a database of its own, Ray forgets everything: the command ends, and the same command resumes."""
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "5")  # Ray waits a minute for its head by default
    cluster, run = nodes(1), tmp_path / "study/runs/fashion-mnist-sgs-ours/seed0"
    process = start(cluster.address, tmp_path / "study", "--only", "sgs")
    wait_while_running(process, lambda: under_way(run))
    trainer = trainer_in(run)
    node = parent(parent(trainer))
    os.kill(trainer, signal.SIGSTOP)  # or it might be done before its node notices
    try:
        cluster.kill("head")
        said, _ = process.communicate(timeout=400)
        wait_for(lambda: parent(parent(trainer)) != node, timeout=200)
        time.sleep(2 * POLL)  # what is told to a stopped process is heard as soon as it continues
    finally:
        os.kill(trainer, signal.SIGCONT)
    assert process.returncode != 0, said
    wait_for(lambda: not is_locked(run), timeout=60)
    assert has_checkpoint(run)
    assert not (run / "result.json").exists()
    monkeypatch.undo()
    process = start(nodes(1).address, tmp_path / "study", "--only", "sgs")
    said, error = process.communicate(timeout=400)
    assert process.returncode == 0, said + error
    assert sessions(run) == 2
    quietly(replace(tiny_config("sgs", epochs=12), out=tmp_path / "plain"))
    assert_same_run(run, tmp_path / "plain")
