"""Start runs on a Ray cluster: one task per run, tried again when its worker or its node dies.

All nodes must see the study's folder under the same path: a run goes on from what is in its folder, wherever it is
started.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spatialgrad.studies.run.local import Ended, failure_message, start_worker
from spatialgrad.studies.run.status import OUTPUT
from spatialgrad.train.errors import ConfigError
from spatialgrad.train.runs.folder import is_locked

RETRIES = 3
"""How often a run is started again after its process, its worker or its node has died."""
PATIENCE = 120.0
"""Seconds in which a process whose worker was killed has to save and end."""
STORE_BYTES = 80 << 20
"""Of the object store of a cluster that is started here; runs speak through their folders."""


class RunKilledError(RuntimeError):
    """The process of a run was killed; the next attempt goes on from its checkpoint."""


class RayLauncher:
    """A task per run.

    Args:
        address: Of the cluster; by default $RAY_ADDRESS, a cluster on this machine, or a new one.
        jobs: Runs at once at most; as many as there is room for if None.
        cpus: CPUs of each run.
        gpus: GPUs of each run; by default one per process if the cluster has any.
        processes: Of each run.
        threads: Of each process.
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
        # Nothing is sent anywhere, and a task without a GPU sees none: what Ray will do by itself one day.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ImportError as error:
            raise ConfigError("--launcher ray needs Ray: pip install 'spatialgrad[ray]'") from error
        self._ray, self.jobs, self.threads = ray, jobs, threads
        self._owns = not ray.is_initialized()
        if self._owns:
            _connect(ray, address)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if gpus is None:
            gpus = float(processes) if _largest(nodes, "GPU") >= processes else 0.0
        # Ray would wait for such a node without a word.
        if not any(cpus <= node.get("CPU", 0) and gpus <= node.get("GPU", 0) for node in nodes):
            self._disconnect()
            has = f"{_largest(nodes, 'CPU'):g} CPUs and {_largest(nodes, 'GPU'):g} GPUs at most"
            raise ConfigError(
                f"a run takes {cpus:g} CPUs and {gpus:g} GPUs, a node of the cluster has {has}: it would never start; "
                "see --cpus-per-run and --gpus-per-run"
            )
        options: dict[str, Any] = {"max_retries": RETRIES, "retry_exceptions": [RunKilledError]}
        self._task = ray.remote(num_cpus=cpus, num_gpus=gpus, **options)(run_in_task)
        self._started: dict[Any, tuple[Path, int]] = {}

    @property
    def has_room(self) -> bool:
        """Whether fewer than `jobs` were started; Ray has the others wait."""
        return self.jobs is None or len(self._started) < self.jobs

    @property
    def running(self) -> int:
        """Tasks that have not ended."""
        return len(self._started)

    def start(self, folder: Path, *, processes: int) -> None:
        """Hand a run over to Ray."""
        output = folder / OUTPUT
        before = output.stat().st_size if output.exists() else 0
        task = self._task.remote(str(folder.resolve()), processes, self.threads)
        self._started[task] = folder, before

    def ended(self, timeout: float) -> list[Ended]:
        """The tasks that have ended."""
        if not self._started:
            time.sleep(timeout)
            return []
        done, _ = self._ray.wait(list(self._started), num_returns=1, timeout=timeout)
        return [self._close(task) for task in done]

    def stop(self) -> None:
        """Cancel the tasks: each has its process save and end."""
        for task in self._started:
            self._ray.cancel(task)
        for task in list(self._started):
            self._close(task)
        self._disconnect()

    def close(self) -> None:
        """End what is still running, and leave the cluster."""
        for task in self._started:
            self._ray.cancel(task, force=True)
        self._started.clear()
        self._disconnect()

    def _close(self, task: Any) -> Ended:
        folder, before = self._started.pop(task)
        try:
            code = int(self._ray.get(task))
            message = failure_message(folder, code, before) if code else ""
        except (self._ray.exceptions.RayError, RunKilledError, KeyboardInterrupt) as error:
            lines = str(error).splitlines() or [type(error).__name__]
            code, message = 1, f"{lines[-1]} (tried {RETRIES + 1} times)"
        return Ended(folder=folder, exit_code=code, message=message)

    def _disconnect(self) -> None:
        if self._owns and self._ray.is_initialized():
            self._ray.shutdown()


def run_in_task(folder: str, processes: int, threads: int | None) -> int:
    """What a task does: run the worker, and take it along when the task is cancelled or dies.

    Returns:
        The worker's exit code.

    Raises:
        RunKilledError: If the worker was killed, so that Ray tries again.
    """
    path = Path(folder)
    # A process whose Ray worker was killed notices it and saves; until then the folder is in use.
    deadline = time.monotonic() + PATIENCE
    while is_locked(path) and time.monotonic() < deadline:
        time.sleep(0.1)
    process = start_worker(path, processes=processes, threads=threads)
    try:
        code = process.wait()
    except BaseException:  # Ray cancels a task by an interrupt
        process.terminate()
        process.wait()
        raise
    finally:
        if process.stdin is not None:
            process.stdin.close()
    if code < 0:
        raise RunKilledError(failure_message(path, code))
    return code


def _largest(nodes: Sequence[Mapping[str, float]], name: str) -> float:
    return max((node.get(name, 0.0) for node in nodes), default=0.0)


def _connect(ray: Any, address: str | None) -> None:
    # Workers must find the package where this process has found it.
    paths = os.environ.get("PYTHONPATH")
    environment = {"env_vars": {"PYTHONPATH": paths}} if paths else None
    shared: dict[str, Any] = {"runtime_env": environment, "log_to_driver": False, "logging_level": "ERROR"}
    address = address or os.environ.get("RAY_ADDRESS")
    try:
        ray.init(address=address or "auto", **shared)
    except (ConnectionError, ValueError, RuntimeError) as error:
        if address:
            raise ConfigError(f"no Ray cluster can be reached at {address}: {str(error).splitlines()[0]}") from error
        # "local": not the one that was looked for just now, of which something may be left.
        ray.init("local", include_dashboard=False, object_store_memory=STORE_BYTES, **shared)
