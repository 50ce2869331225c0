"""Real processes that form a gloo group and run functions of the tests, one after the other."""

import os
import pickle
import tempfile
import time
import warnings
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# A collective that waits longer than this fails in the process; a function that runs longer ends the processes.
COLLECTIVE_TIMEOUT = timedelta(seconds=30)
TIMEOUT = 90.0
# Importing torch in several processes at once takes long on a busy machine, and must not count as a function's time.
START_TIMEOUT = 150.0


@dataclass(frozen=True)
class Failure:
    """What a function raised in one process."""

    kind: str
    message: str


class Ranks:
    """Processes that start when they are first needed and again after they had to be ended."""

    def __init__(self, size=2):
        self.size = size
        self._processes, self._pipes = [], []

    def run(self, function, *args):
        """Call a function in every process; the values that they return, or a `Failure` for each that raised.

        Args:
            function: A function at the top of an importable module.
            *args: What it is called with, the same in every process.
        """
        try:
            if not self._processes:
                self._start()
            for pipe in self._pipes:
                pipe.send_bytes(pickle.dumps((function, args)))
            deadline = time.monotonic() + TIMEOUT
            return [self._receive(pipe, deadline) for pipe in self._pipes]
        except BaseException:
            self.stop()
            raise

    def values(self, function, *args):
        """As `run`, where no process may raise."""
        results = self.run(function, *args)
        assert not any(isinstance(result, Failure) for result in results), results
        return results

    def stop(self):
        if not self._processes:
            return
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._pipes = [], []
        self._store.unlink(missing_ok=True)

    def _start(self):
        handle, store = tempfile.mkstemp(prefix="ranks-")
        os.close(handle)
        self._store = Path(store)
        context = mp.get_context("spawn")
        for rank in range(self.size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.size, store, there), daemon=True)
            process.start()
            self._processes.append(process)
            self._pipes.append(here)
        deadline = time.monotonic() + START_TIMEOUT
        for pipe in self._pipes:
            self._receive(pipe, deadline)

    @staticmethod
    def _receive(pipe, deadline):
        if not pipe.poll(max(0.0, deadline - time.monotonic())):
            raise TimeoutError("a process did not answer in time")
        return pickle.loads(pipe.recv_bytes())


def _serve(rank, size, store, pipe):
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT
    )
    pipe.send_bytes(pickle.dumps("ready"))
    while True:
        function, args = pickle.loads(pipe.recv_bytes())
        torch.manual_seed(0)
        try:
            result = function(*args)
        except Exception as error:
            result = Failure(type(error).__name__, str(error))
        pipe.send_bytes(pickle.dumps(result))
