"""Runs on a Ray cluster: one task per run, restarted when its worker or its node dies.

All nodes must see the study's folder under the same path: a run resumes from its folder, wherever it is started.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spatialgrad.studies.run.launch import Ended, Started, failure_message, start_worker
from spatialgrad.train.errors import ConfigError
from spatialgrad.train.locks import is_locked

RETRIES = 3
"""Number of restarts after the process, its worker or its node has died."""
PATIENCE = 120.0
"""Seconds that a process has to save and end after its Ray worker was killed."""
POLL = 1.0
"""Seconds between two looks at whether Ray's node is still there."""
STORE_BYTES = 80 << 20
"""Object store of a cluster that is started here; runs communicate through their folders only."""


class RunKilledError(RuntimeError):
    """The process of a run was killed; the next attempt resumes from its checkpoint."""


class RayLauncher:
    """A task per run.

    Args:
        address: Address of the cluster; by default $RAY_ADDRESS, a cluster on this machine, or a new one.
        jobs: Largest number of runs at a time; as many as the cluster has room for if None.
        cpus: CPUs per run.
        gpus: GPUs per run; by default one per process if the cluster has any.
        processes: Number of processes per run.
        threads: CPU threads per process.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        jobs: int | None = None,
        cpus: float = 1,
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
            raise ConfigError("--launcher ray needs Ray: pip install 'spatialgrad[ray]'") from error
        self._ray: Any = ray
        self.jobs, self.threads = jobs, threads
        self._owns = not ray.is_initialized()
        if self._owns:
            _connect(ray, address)
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if gpus is None:
            gpus = float(processes) if _largest(nodes, "GPU") >= processes else 0.0
        # Ray would wait for such a node without any message.
        if not any(cpus <= node.get("CPU", 0) and gpus <= node.get("GPU", 0) for node in nodes):
            self._disconnect()
            has = f"{_largest(nodes, 'CPU'):g} CPUs and {_largest(nodes, 'GPU'):g} GPUs"
            raise ConfigError(
                f"a run needs {cpus:g} CPUs and {gpus:g} GPUs, but no node of the cluster has more than {has}; "
                "see --cpus-per-run and --gpus-per-run"
            )
        options: dict[str, Any] = {"max_retries": RETRIES, "retry_exceptions": [RunKilledError]}
        self._task = ray.remote(num_cpus=cpus, num_gpus=gpus, **options)(run_in_task)
        self._started: dict[Any, Started] = {}

    @property
    def has_room(self) -> bool:
        """Whether fewer than `jobs` runs were started; Ray queues what does not fit."""
        return self.jobs is None or len(self._started) < self.jobs

    @property
    def running(self) -> int:
        """Number of tasks that have not ended."""
        return len(self._started)

    def start(self, folder: Path, *, processes: int) -> None:
        """Hand a run over to Ray."""
        run = Started.now(folder)
        self._started[self._task.remote(str(folder.resolve()), processes, self.threads, os.getcwd())] = run

    def ended(self, timeout: float) -> list[Ended]:
        """The runs whose tasks have ended."""
        if not self._started:
            time.sleep(timeout)
            return []
        done, _ = self._ray.wait(list(self._started), num_returns=1, timeout=timeout)
        return [self._close(task) for task in done]

    def cancel(self, folder: Path) -> None:
        """Cancel the task of one run."""
        for task, run in self._started.items():
            if run.folder == folder:
                self._ray.cancel(task)

    def stop(self) -> None:
        """Cancel the tasks: each makes its process save and end."""
        for task in self._started:
            self._ray.cancel(task)
        for task in list(self._started):
            self._close(task)
        self._disconnect()

    def close(self) -> None:
        """End what is still running, and disconnect from the cluster."""
        for task in self._started:
            self._ray.cancel(task, force=True)
        self._started.clear()
        self._disconnect()

    def _close(self, task: Any) -> Ended:
        run = self._started.pop(task)
        try:
            return run.ended(int(self._ray.get(task)))
        except (self._ray.exceptions.RayError, RunKilledError, KeyboardInterrupt) as error:
            lines = str(error).splitlines() or [type(error).__name__]
            return Ended(folder=run.folder, exit_code=1, message=f"{lines[-1]} (tried {RETRIES + 1} times)")

    def _disconnect(self) -> None:
        if self._owns and self._ray.is_initialized():
            self._ray.shutdown()


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
                # Ray waits for its tasks even then, but nobody waits for this one any more.
                raise RunKilledError("the node of Ray that started it has ended")
    except BaseException:  # Ray cancels a task with an interrupt
        process.terminate()
        process.wait()
        raise
    finally:
        if process.stdin is not None:
            process.stdin.close()
    if code < 0:
        raise RunKilledError(failure_message(path, code))
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
