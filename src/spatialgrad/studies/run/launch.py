"""What every launcher does: start the process of a run, and say why it failed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from spatialgrad.studies.run.status import OUTPUT

LAST_LINES = 5
"""Number of output lines that a failure message quotes."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run whose process has ended."""

    folder: Path
    exit_code: int
    """Negative: the signal that killed the process."""
    message: str = ""
    """The end of its output, if it failed."""


@dataclass(frozen=True, slots=True)
class Started:
    """A run that was started, and the length of its output before that."""

    folder: Path
    output_before: int

    @classmethod
    def now(cls, folder: Path) -> Started:
        """Remember a run just before it starts."""
        output = folder / OUTPUT
        return cls(folder, output.stat().st_size if output.exists() else 0)

    def ended(self, code: int) -> Ended:
        """The same run after its process ended with an exit code."""
        message = failure_message(self.folder, code, self.output_before) if code else ""
        return Ended(folder=self.folder, exit_code=code, message=message)


class Launcher(Protocol):
    """Starts runs somewhere."""

    @property
    def has_room(self) -> bool:
        """Whether another run can be started now."""

    @property
    def running(self) -> int:
        """Number of runs that were started and have not ended."""

    def start(self, folder: Path, *, processes: int) -> None:
        """Start the run in a folder, which holds its config."""

    def ended(self, timeout: float) -> list[Ended]:
        """The runs that have ended since the last call; waits at most this many seconds for one."""

    def cancel(self, folder: Path) -> None:
        """Make one run save and end, without waiting for it; nothing happens if it has ended."""

    def stop(self) -> None:
        """Make all runs save and end, and wait for them."""

    def close(self) -> None:
        """End everything that still runs, immediately."""


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
            cwd=place,
            start_new_session=True,  # Ctrl-C reaches the launcher only, which then stops each run once
        )


def failure_message(folder: Path, code: int, offset: int = 0) -> str:
    """Why a run failed: the end of its output.

    Args:
        folder: The run's folder.
        code: Exit code of its process.
        offset: Number of bytes of the output to skip: those of earlier attempts.
    """
    if code < 0:
        return f"the process was killed by {signal.Signals(-code).name}"
    output = folder / OUTPUT
    said = output.read_bytes()[offset:].decode(errors="replace") if output.exists() else ""
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if line.startswith("spatialgrad: ")]
    if errors:
        lines = [lines[errors[0]].removeprefix("spatialgrad: "), *lines[errors[0] + 1 :]][:LAST_LINES]
    return "\n".join(lines[-LAST_LINES:]) or f"the process ended with exit code {code} and no output"


def _variables(threads: int | None, gpus: Sequence[str]) -> Mapping[str, str]:
    variables = {} if threads is None else {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return {**variables, "CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else variables
