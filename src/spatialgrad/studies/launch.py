"""Start the process of a run, here, and say why it failed.

A run's process saves and ends with the process that started it, however that ends.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

OUTPUT = "output.txt"
"""What the process of a run prints, in the run's folder."""
LAST_LINES = 5
"""Number of output lines that a failure message quotes."""
PATIENCE = 300.0
"""Seconds that a process has to save and end after SIGTERM; then it is killed."""
POLL = 0.2
"""Seconds between two looks at a process."""
CLUSTER_VARIABLES = ("SLURM_", "PMI_", "PMIX_", "OMPI_", "TORCHELASTIC_")
RANK_VARIABLES = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
)
"""Variables by which a process would take itself for one of several; each run is a training of its own."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How the process of a run has ended."""

    exit_code: int
    """Negative: the signal that killed the process."""
    message: str = ""
    """The end of its output, if it failed."""


class Executor(Protocol):
    """Executes runs somewhere."""

    @property
    def slots(self) -> int:
        """Number of runs at a time."""

    def submit(self, folder: Path, *, processes: int) -> Future[Ended]:
        """Start the run in a folder, which holds its config, as soon as a slot is free."""

    def cancel(self, folder: Path) -> None:
        """Make one run save and end, without waiting for it; nothing happens if it has ended."""

    def close(self) -> None:
        """End everything that still runs, immediately; checkpoints stay intact."""


class LocalExecutor:
    """Several runs at a time on this machine, each in its own process or, through torchrun, in several.

    Args:
        slots: Number of runs at a time.
        threads: CPU threads per process; PyTorch's default if None.
        gpus: CUDA names of the GPUs that the runs divide among them; if empty, every run sees all GPUs.
        patience: Seconds that a process has to save and end after SIGTERM.
    """

    def __init__(
        self, slots: int = 1, threads: int | None = None, gpus: Sequence[str] = (), *, patience: float = PATIENCE
    ) -> None:
        self.slots, self.threads, self.gpus, self.patience = slots, threads, gpus, patience
        self._pool = ThreadPoolExecutor(slots)
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(slots):
            self._free.put(number)
        self._cancelled: set[Path] = set()
        self._closed = False

    def submit(self, folder: Path, *, processes: int) -> Future[Ended]:
        """Start a process that writes its output into the run's folder."""
        self._cancelled.discard(folder)
        return self._pool.submit(self._execute, folder, processes)

    def cancel(self, folder: Path) -> None:
        """SIGTERM to one run; SIGKILL if it ignores that."""
        self._cancelled.add(folder)

    def close(self) -> None:
        """SIGKILL to all."""
        self._closed = True
        self._pool.shutdown(cancel_futures=True)

    def _execute(self, folder: Path, processes: int) -> Ended:
        number, before = self._free.get(), output_length(folder)
        try:
            gpus = share_of_gpus(self.gpus, number, processes)
            with start_worker(folder, processes=processes, threads=self.threads, gpus=gpus) as process:
                return ended(folder, self._wait(folder, process), before)
        finally:
            self._free.put(number)

    def _wait(self, folder: Path, process: subprocess.Popen[bytes]) -> int:
        deadline: float | None = None
        while True:
            try:
                return process.wait(timeout=POLL)
            except subprocess.TimeoutExpired:
                if deadline is None and folder in self._cancelled:
                    process.send_signal(signal.SIGTERM)
                    deadline = time.monotonic() + self.patience
                if self._closed or (deadline is not None and time.monotonic() > deadline):
                    kill_group(process)


def start_worker(
    folder: Path,
    *,
    processes: int = 1,
    threads: int | None = None,
    gpus: Sequence[str] = (),
    place: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start the process of a run, or torchrun with several processes.

    The run saves and ends when this process ends: it notices that its standard input is closed.

    Args:
        folder: Of the run.
        processes: Number of processes.
        threads: CPU threads per process; PyTorch's default if None.
        gpus: CUDA names of the GPUs that it may use; all if empty.
        place: Working directory; by default this process's.
    """
    module = ["-m", "spatialgrad.studies.worker", str(folder), "--attached"]
    if processes > 1:
        module = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), *module]
    with open(folder / OUTPUT, "ab") as output:
        return subprocess.Popen(
            [sys.executable, *module],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=worker_environment(threads, gpus),
            cwd=place,
            start_new_session=True,  # Ctrl-C reaches the study only, which then stops each run once
        )


def worker_environment(threads: int | None = None, gpus: Sequence[str] = ()) -> dict[str, str]:
    """The environment of a run's process: this one's, without what belongs to another group of processes."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(CLUSTER_VARIABLES) and name not in RANK_VARIABLES
    }
    if threads is not None:
        kept |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return {**kept, "CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else kept


def output_length(folder: Path) -> int:
    """Number of bytes that earlier attempts have printed."""
    output = folder / OUTPUT
    return output.stat().st_size if output.exists() else 0


def ended(folder: Path, code: int, offset: int = 0) -> Ended:
    """How a process has ended; if it failed, with the end of its output.

    Args:
        folder: The run's folder.
        code: Exit code.
        offset: Number of bytes of the output to skip: those of earlier attempts.
    """
    if code == 0:
        return Ended(exit_code=code)
    if code < 0:
        return Ended(exit_code=code, message=f"the process was killed by {signal.Signals(-code).name}")
    output = folder / OUTPUT
    printed = output.read_bytes()[offset:].decode(errors="replace") if output.exists() else ""
    lines = [line for line in printed.splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if line.startswith("spatialgrad: ")]
    if errors:
        lines = [lines[errors[0]].removeprefix("spatialgrad: "), *lines[errors[0] + 1 :]][:LAST_LINES]
    message = "\n".join(lines[-LAST_LINES:]) or f"the process ended with exit code {code} and no output"
    return Ended(exit_code=code, message=message)


def share_of_gpus(gpus: Sequence[str], slot: int, processes: int) -> list[str]:
    """The GPUs of one of several concurrent runs: disjoint from its neighbours' as long as there are enough.

    Args:
        gpus: All GPUs.
        slot: Number of the run among those running now, from 0.
        processes: Number of processes of each run.
    """
    if not gpus:
        return []
    return list(dict.fromkeys(gpus[(slot * processes + number) % len(gpus)] for number in range(processes)))


def visible_gpus() -> list[str]:
    """CUDA names of the GPUs that this process may use."""
    import torch

    if not torch.cuda.is_available():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children; it leads its own session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
