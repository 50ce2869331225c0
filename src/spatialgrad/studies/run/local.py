"""Start runs on this machine: a process each, or several through torchrun, that end with the one that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from spatialgrad.studies.run.status import OUTPUT
from spatialgrad.train.errors import FolderInUseError

IN_USE = FolderInUseError.exit_code
LAST_LINES = 5


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run's process that has ended."""

    folder: Path
    exit_code: int
    """Negative: the signal that killed it."""
    message: str = ""
    """What it said last, if it failed."""


@dataclass(frozen=True, kw_only=True)
class _Started:
    process: subprocess.Popen[bytes]
    slot: int
    output_before: int


class Launcher(Protocol):
    """Where runs are started."""

    @property
    def has_room(self) -> bool:
        """Whether another run can be started now."""

    @property
    def running(self) -> int:
        """Runs that were started and have not ended."""

    def start(self, folder: Path, *, processes: int) -> None:
        """Start the run in a folder, which holds its config."""

    def ended(self, timeout: float) -> list[Ended]:
        """The runs that have ended since; waits so many seconds for one at most."""

    def stop(self) -> None:
        """Have all runs save and end, and wait for them."""

    def close(self) -> None:
        """End what is still running at once."""


class LocalLauncher:
    """Some runs at once, each in a process of its own.

    Args:
        jobs: Runs at once.
        threads: Threads of each process; PyTorch's choice if None.
        gpus: What CUDA calls the GPUs that the runs divide between them; none of them is hidden from a run if empty.
    """

    def __init__(self, jobs: int = 1, threads: int | None = None, gpus: Sequence[str] = ()) -> None:
        self.jobs, self.threads, self.gpus = jobs, threads, gpus
        self._started: dict[Path, _Started] = {}

    @property
    def has_room(self) -> bool:
        """Whether fewer than `jobs` are running."""
        return len(self._started) < self.jobs

    @property
    def running(self) -> int:
        """Processes that run."""
        return len(self._started)

    def start(self, folder: Path, *, processes: int) -> None:
        """Start a process; what it says goes into its folder."""
        output = folder / OUTPUT
        before = output.stat().st_size if output.exists() else 0
        taken = {started.slot for started in self._started.values()}
        slot = next(slot for slot in range(self.jobs) if slot not in taken)
        gpus = share_of_gpus(self.gpus, slot, processes)
        process = start_worker(folder, processes=processes, threads=self.threads, gpus=gpus)
        self._started[folder] = _Started(process=process, slot=slot, output_before=before)

    def ended(self, timeout: float) -> list[Ended]:
        """The processes that have ended."""
        deadline = time.monotonic() + timeout
        while True:
            done = [folder for folder, started in self._started.items() if started.process.poll() is not None]
            if done or time.monotonic() >= deadline:
                break
            time.sleep(0.05)
        return [self._close(folder) for folder in done]

    def stop(self) -> None:
        """SIGTERM: each finishes its step and saves."""
        for started in self._started.values():
            started.process.send_signal(signal.SIGTERM)
        for folder in list(self._started):
            self._close(folder)

    def close(self) -> None:
        """SIGKILL; checkpoints are whole in any case."""
        for started in self._started.values():
            _end_group(started.process)
        for folder in list(self._started):
            self._close(folder)

    def _close(self, folder: Path) -> Ended:
        started = self._started.pop(folder)
        code = started.process.wait()
        if started.process.stdin is not None:
            started.process.stdin.close()
        message = failure_message(folder, code, started.output_before) if code else ""
        return Ended(folder=folder, exit_code=code, message=message)


def start_worker(
    folder: Path, *, processes: int = 1, threads: int | None = None, gpus: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start the process of a run, or torchrun with several.

    It ends, and saves, when this process ends: it notices that no one holds the other end of its standard input.
    """
    module = ["-m", "spatialgrad.studies.run.worker", str(folder), "--attached"]
    if processes > 1:
        module = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), *module]
    with open(folder / OUTPUT, "ab") as output:
        return subprocess.Popen(
            [sys.executable, *module],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_variables(threads, gpus)},
            start_new_session=True,  # Ctrl-C reaches the launcher alone, which then stops each run once
        )


def failure_message(folder: Path, code: int, offset: int = 0) -> str:
    """Why a run has failed: what it said last, after the first `offset` bytes of its output.

    Args:
        folder: Of the run.
        code: Exit code of its process.
        offset: Length of the output when it was started.
    """
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    output = folder / OUTPUT
    said = output.read_bytes()[offset:].decode(errors="replace") if output.exists() else ""
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if line.startswith("spatialgrad: ")]
    if errors:
        lines = [lines[errors[0]].removeprefix("spatialgrad: "), *lines[errors[0] + 1 :]][:LAST_LINES]
    return "\n".join(lines[-LAST_LINES:]) or f"its process ended with exit code {code} and said nothing"


def share_of_gpus(gpus: Sequence[str], slot: int, processes: int) -> list[str]:
    """The GPUs of one of several runs at once: others than those of its neighbours, as long as there are enough.

    Args:
        gpus: All of them.
        slot: Number of the run among those that run now, from 0.
        processes: Of each run.
    """
    if not gpus:
        return []
    return list(dict.fromkeys(gpus[(slot * processes + number) % len(gpus)] for number in range(processes)))


def visible_gpus() -> list[str]:
    """What CUDA calls the GPUs that this process may use."""
    import torch

    if not torch.cuda.is_available():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


def _variables(threads: int | None, gpus: Sequence[str]) -> Mapping[str, str]:
    variables = {} if threads is None else {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return {**variables, "CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else variables


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it has started; it leads a session of its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
