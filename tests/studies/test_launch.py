"""The processes of runs: why one failed, how it is stopped, and what it gets of the machine."""

import signal
import subprocess
import sys
import time

import pytest

from spatialgrad.studies import launch, worker
from spatialgrad.studies.launch import (
    LocalExecutor,
    ended,
    output_length,
    share_of_gpus,
    worker_environment,
)
from spatialgrad.studies.ray import default_cpus, number_that_fit
from support.common import python_environment


def test_why_a_run_failed(tmp_path):
    assert ended(tmp_path, 0).message == ""
    assert ended(tmp_path, -9).message == "the process was killed by SIGKILL"
    assert "exit code 7 and no output" in ended(tmp_path, 7).message
    output = tmp_path / "output.txt"
    output.write_text("old\nepoch 1/2\nspatialgrad: the disk is full.\nRemove something.\n")
    assert ended(tmp_path, 74).message == "the disk is full.\nRemove something."
    before = output_length(tmp_path)  # what earlier attempts have printed does not count
    with open(output, "a") as file:
        file.write("".join(f"line {number}\n" for number in range(9)) + "KeyError: 1\n")
    assert ended(tmp_path, 1, before).message.splitlines() == [*(f"line {number}" for number in range(5, 9)),
                                                               "KeyError: 1"]  # fmt: skip


def test_a_run_is_a_training_of_its_own(monkeypatch):
    """Within a job of Slurm or torchrun, it must not take itself for one of its tasks."""
    for name in ("SLURM_NTASKS", "SLURM_PROCID", "RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK"):
        monkeypatch.setenv(name, "4")
    monkeypatch.setenv("SPATIALGRAD_DATA", "data")
    found = worker_environment(2, ["1"])
    assert not any(name.startswith(("SLURM_", "RANK", "WORLD", "MASTER", "LOCAL_")) for name in found)
    assert [found[name] for name in ("SPATIALGRAD_DATA", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")] == [
        "data",
        "2",
        "1",
    ]


@pytest.fixture
def stubborn(monkeypatch):
    """A worker that ignores SIGTERM."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"

    def start(folder, **options):
        with open(folder / "output.txt", "ab") as output:
            return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=output,
                                    start_new_session=True)  # fmt: skip

    monkeypatch.setattr(launch, "start_worker", start)


@pytest.mark.parametrize("way", ["cancel", "close"])
def test_a_process_that_ignores_sigterm_is_killed(tmp_path, stubborn, way):
    executor = LocalExecutor(patience=0.5)
    future = executor.submit(tmp_path, processes=1)
    while not output_length(tmp_path):
        time.sleep(0.05)
    if way == "cancel":
        executor.cancel(tmp_path)
    else:
        executor.close()
    assert future.result(timeout=30).exit_code == -signal.SIGKILL
    executor.close()


def test_a_folder_without_a_run(tmp_path, capsys):
    assert worker.main([str(tmp_path)]) == 2
    assert "is not a run's folder" in capsys.readouterr().err


@pytest.mark.slow  # tests/test_architecture.py says it of the imports between floors
def test_a_run_loads_neither_the_command_line_nor_the_report_nor_what_runs_studies():
    code = "import sys, spatialgrad.studies.worker, spatialgrad.train.loop; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=python_environment())
    loaded = set(done.stdout.split())
    assert "torch" in loaded, done.stderr
    assert not {"spatialgrad.cli", "spatialgrad.report", "optuna", "ray", "jinja2"} & loaded


def test_what_a_run_gets_of_a_ray_cluster():
    """From the nodes, whatever the machine of the command has; the number of runs at a time is finite."""
    gpu_node, cpu_node = {"CPU": 64.0, "GPU": 8.0}, {"CPU": 16.0}
    assert default_cpus([gpu_node], 1.0, 1) == 8
    assert default_cpus([gpu_node, cpu_node], 2.0, 2) == 16
    assert default_cpus([cpu_node], 0.0, 1) == 4
    assert default_cpus([{"CPU": 2.0}], 0.0, 1) == 2
    assert number_that_fit([gpu_node, cpu_node], 8, 1.0) == 8
    assert number_that_fit([gpu_node, cpu_node], 4, 0.0) == 20
    assert number_that_fit([cpu_node], 32, 0.0) == 0


def test_concurrent_runs_divide_the_gpus():
    four = ["0", "1", "2", "3"]
    assert [share_of_gpus(four, slot, 1) for slot in range(5)] == [["0"], ["1"], ["2"], ["3"], ["0"]]
    assert [share_of_gpus(four, slot, 2) for slot in range(3)] == [["0", "1"], ["2", "3"], ["0", "1"]]
    assert share_of_gpus(["7"], 1, 2) == ["7"]
    assert share_of_gpus([], 1, 2) == []
