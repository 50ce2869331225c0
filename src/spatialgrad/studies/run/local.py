"""Runs on this machine: one process each, or several through torchrun, that end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spatialgrad.studies.run.launch import Ended, Started, start_worker


@dataclass(frozen=True, kw_only=True)
class _Slot:
    number: int
    process: subprocess.Popen[bytes]
    run: Started


class LocalLauncher:
    """Several runs at a time, each in its own process.

    Args:
        jobs: Number of runs at a time.
        threads: CPU threads per process; PyTorch's default if None.
        gpus: CUDA names of the GPUs that the runs divide among them; if empty, every run sees all GPUs.
    """

    def __init__(self, jobs: int = 1, threads: int | None = None, gpus: Sequence[str] = ()) -> None:
        self.jobs, self.threads, self.gpus = jobs, threads, gpus
        self._slots: dict[Path, _Slot] = {}

    @property
    def has_room(self) -> bool:
        """Whether fewer than `jobs` runs are running."""
        return len(self._slots) < self.jobs

    @property
    def running(self) -> int:
        """Number of running processes."""
        return len(self._slots)

    def start(self, folder: Path, *, processes: int) -> None:
        """Start a process that writes its output into the run's folder."""
        taken = {slot.number for slot in self._slots.values()}
        number = next(number for number in range(self.jobs) if number not in taken)
        gpus, run = share_of_gpus(self.gpus, number, processes), Started.now(folder)
        process = start_worker(folder, processes=processes, threads=self.threads, gpus=gpus)
        self._slots[folder] = _Slot(number=number, process=process, run=run)

    def ended(self, timeout: float) -> list[Ended]:
        """The runs whose processes have ended."""
        deadline = time.monotonic() + timeout
        while True:
            done = [folder for folder, slot in self._slots.items() if slot.process.poll() is not None]
            if done or time.monotonic() >= deadline:
                break
            time.sleep(0.05)
        return [self._close(folder) for folder in done]

    def cancel(self, folder: Path) -> None:
        """SIGTERM to one run."""
        if folder in self._slots:
            self._slots[folder].process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """SIGTERM: each run finishes its step and saves."""
        for slot in self._slots.values():
            slot.process.send_signal(signal.SIGTERM)
        for folder in list(self._slots):
            self._close(folder)

    def close(self) -> None:
        """SIGKILL; checkpoints stay intact."""
        for slot in self._slots.values():
            _kill_group(slot.process)
        for folder in list(self._slots):
            self._close(folder)

    def _close(self, folder: Path) -> Ended:
        slot = self._slots.pop(folder)
        code = slot.process.wait()
        if slot.process.stdin is not None:
            slot.process.stdin.close()
        return slot.run.ended(code)


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


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children; it leads its own session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
