"""Runs on a Ray cluster: one task per run, restarted when its worker or its node dies.

All nodes must see the study's folder under the same path: a run resumes from its folder, wherever it is started.
"""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from spatialgrad.studies.launch import Ended, ended, output_length, start_worker
from spatialgrad.train.errors import ConfigError
from spatialgrad.train.locks import is_locked
from spatialgrad.utils.extras import install_command

RETRIES = 3
"""Number of restarts after the process, its worker or its node has died."""
PATIENCE = 120.0
"""Seconds that a process has to save and end after its Ray worker was killed."""
MOST_CPUS = 4
"""CPUs per process of a run without a GPU."""
POLL = 1.0
"""Seconds between two looks at whether Ray's node is still there."""
STORE_BYTES = 80 << 20
"""Object store of a cluster that is started here; runs communicate through their folders only."""


class RunKilledError(RuntimeError):
    """The process of a run was killed; the next attempt resumes from its checkpoint."""


class RayExecutor:
    """A task per run.

    Args:
        address: Address of the cluster; by default $RAY_ADDRESS, a cluster on this machine, or a new one.
        jobs: Largest number of runs at a time; as many as the cluster has room for if None.
        cpus: CPUs per run; by default the share of a GPU in its node's, and at most `MOST_CPUS` without one.
        gpus: GPUs per run; by default one per process if the cluster has any.
        processes: Number of processes per run.
        threads: CPU threads per process; by default the CPUs of a run, divided by its processes.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        jobs: int | None = None,
        cpus: int | None = None,
        gpus: float | None = None,
        processes: int = 1,
        threads: int | None = None,
    ) -> None:
        # No usage statistics; and a task without a GPU sees none, which is Ray's announced default.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ImportError as error:
            raise ConfigError(f"--launcher ray needs Ray: {install_command('ray')}") from error
        self._ray: Any = ray
        self._owns = not ray.is_initialized()
        if self._owns:
            _connect(ray, address)
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if gpus is None:
            gpus = float(processes) if _largest(nodes, "GPU") >= processes else 0.0
        if cpus is None:
            cpus = threads * processes if threads is not None else default_cpus(nodes, gpus, processes)
        self.threads = threads or max(1, cpus // processes)
        room = number_that_fit(nodes, cpus, gpus)
        if not room:  # Ray would wait for such a node without any message
            self._disconnect()
            has = f"{_largest(nodes, 'CPU'):g} CPUs and {_largest(nodes, 'GPU'):g} GPUs"
            raise ConfigError(
                f"a run needs {cpus:g} CPUs and {gpus:g} GPUs, but no node of the cluster has more than {has}; "
                "see --cpus-per-run and --gpus-per-run"
            )
        self.slots = min(room, jobs or room)
        options: dict[str, Any] = {"max_retries": RETRIES, "retry_exceptions": [RunKilledError]}
        self._task = ray.remote(num_cpus=cpus, num_gpus=gpus, **options)(run_in_task)
        self._pool = ThreadPoolExecutor(self.slots)
        self._started: dict[Path, Any] = {}
        self._cancelled: set[Path] = set()

    def submit(self, folder: Path, *, processes: int) -> Future[Ended]:
        """Hand a run over to Ray."""
        self._cancelled.discard(folder)
        before = output_length(folder)
        task = self._task.remote(str(folder.resolve()), processes, self.threads, os.getcwd())
        self._started[folder] = task
        return self._pool.submit(self._wait, folder, task, before)

    def cancel(self, folder: Path) -> None:
        """Cancel the task of one run, which makes its process save and end."""
        if folder in self._started and folder not in self._cancelled:
            self._cancelled.add(folder)
            self._ray.cancel(self._started[folder])

    def close(self) -> None:
        """End what is still running, and disconnect from the cluster."""
        for folder, task in list(self._started.items()):
            self._cancelled.add(folder)
            self._ray.cancel(task, force=True)
        self._pool.shutdown(cancel_futures=True)
        self._disconnect()

    def _wait(self, folder: Path, task: Any, before: int) -> Ended:
        try:
            return ended(folder, int(self._ray.get(task)), before)
        except (self._ray.exceptions.RayError, RunKilledError, KeyboardInterrupt) as error:
            lines = str(error).splitlines() or [type(error).__name__]
            return Ended(exit_code=1, message=f"{lines[-1]} (tried {RETRIES + 1} times)")  # or cancelled: not shown
        finally:
            self._started.pop(folder, None)

    def _disconnect(self) -> None:
        if self._owns and self._ray.is_initialized():
            self._ray.shutdown()


def default_cpus(nodes: Sequence[Mapping[str, float]], gpus: float, processes: int) -> int:
    """CPUs per run: those of a node divided by its GPUs, or at most `MOST_CPUS` per process without a GPU."""
    if gpus:
        shares = [node.get("CPU", 0) / node["GPU"] * gpus for node in nodes if node.get("GPU", 0) >= gpus]
        return max(processes, int(min(shares, default=1)))
    return max(1, min(int(_largest(nodes, "CPU")), MOST_CPUS * processes))


def number_that_fit(nodes: Sequence[Mapping[str, float]], cpus: float, gpus: float) -> int:
    """How many runs the nodes can execute at a time."""
    fits = [min(node.get("CPU", 0) // cpus, node.get("GPU", 0) // gpus if gpus else math.inf) for node in nodes]
    return int(sum(fits))


def run_in_task(folder: str, processes: int, threads: int | None, place: str) -> int:
    """The body of a task: run the worker, and end it when the task is cancelled or dies.

    Args:
        folder: Of the run.
        processes: Number of its processes.
        threads: CPU threads per process.
        place: Working directory of the command, which relative paths start from; ignored where it does not exist.

    Returns:
        The worker's exit code.

    Raises:
        RunKilledError: If the worker was killed, so that Ray restarts it, or Ray's node has ended.
    """
    path = Path(folder)
    # A process whose Ray worker was killed notices that and saves; until then the folder is locked.
    deadline = time.monotonic() + PATIENCE
    while is_locked(path) and time.monotonic() < deadline:
        time.sleep(0.1)
    there = Path(place) if Path(place).is_dir() else None
    node = os.getppid()
    process = start_worker(path, processes=processes, threads=threads, place=there)
    try:
        while (code := _exit_code(process)) is None:
            if os.getppid() != node:
                # Ray waits for its tasks even then, but this task is orphaned.
                raise RunKilledError("the node of Ray that started it has ended")
    except BaseException:  # Ray cancels a task with an interrupt
        process.terminate()
        process.wait()
        raise
    finally:
        if process.stdin is not None:
            process.stdin.close()
    if code < 0:
        raise RunKilledError(ended(path, code).message)
    return code


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """The exit code of a process; None if it has not ended after a while."""
    try:
        return process.wait(timeout=POLL)
    except subprocess.TimeoutExpired:
        return None


def _largest(nodes: Sequence[Mapping[str, float]], name: str) -> float:
    return max((node.get(name, 0.0) for node in nodes), default=0.0)


def _connect(ray: Any, address: str | None) -> None:
    # Workers must import the package from where this process did.
    paths = os.environ.get("PYTHONPATH")
    environment = {"env_vars": {"PYTHONPATH": paths}} if paths else None
    shared: dict[str, Any] = {"runtime_env": environment, "log_to_driver": False, "logging_level": "ERROR"}
    address = address or os.environ.get("RAY_ADDRESS")
    try:
        ray.init(address=address or "auto", **shared)
    except (ConnectionError, ValueError, RuntimeError) as error:
        if address:
            raise ConfigError(f"cannot reach a Ray cluster at {address}: {str(error).splitlines()[0]}") from error
        # "local": never the remains of a cluster that was looked for just now.
        ray.init("local", include_dashboard=False, object_store_memory=STORE_BYTES, **shared)
