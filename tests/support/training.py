"""Tiny trainings, and processes of their own for those that get killed."""

import io
import multiprocessing
import os
import signal
import socket
import sys
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path

import pytest
import torch
from rich.console import Console

from spatialgrad import SpatialGradientScaling
from spatialgrad.train import (
    BudgetConfig,
    DataConfig,
    DyRepGroup,
    InterruptedTraining,
    MachineConfig,
    MethodConfig,
    ModelConfig,
    OptimizerConfig,
    ScalingConfig,
    TrainConfig,
    resume,
    train,
)
from spatialgrad.train.checkpoint import CHECKPOINT, read_checkpoint
from spatialgrad.train.run import DISTANCES, GROWTH, METRICS, SCALINGS
from support.common import default_signals

# Compiled once in the process that all others are forked from.
_warm = torch.nn.Conv2d(1, 1, 3)
SpatialGradientScaling(_warm, torch.optim.SGD(_warm.parameters())).update(torch.rand(2, 1, 8, 8))

SILENT = Console(file=io.StringIO())
FILES = (METRICS, SCALINGS, GROWTH, DISTANCES)


def tiny(out, method="baseline", *, epochs=3, **groups):
    """A training of a few seconds: 5 steps an epoch, dropout, an incomplete last batch, updates in every epoch.

    Args:
        out: Folder.
        method: Its name.
        epochs: Of the training.
        **groups: Fields to change, by group: `budget={"checkpoint_steps": 1}`.
    """
    config = TrainConfig(
        model=ModelConfig(name="vgg11", width=1 / 16),
        data=DataConfig(name="fashion-mnist-mini", limit=150, test_limit=100, batch_size=32, cutout=8),
        method=MethodConfig(name=method),
        optimizer=OptimizerConfig(lr=0.05),
        scaling=ScalingConfig(every=1),
        dyrep=DyRepGroup(interval=1, batches=2),
        budget=BudgetConfig(epochs=epochs),
        machine=MachineConfig(accelerator="cpu", threads=1, workers=0),
        out=Path(out),
    )
    return with_groups(config, groups)


def with_groups(config, groups):
    """A config with fields changed, by group: `{"budget": {"checkpoint_steps": 1}}`."""
    for group, values in groups.items():
        changed = replace(getattr(config, group), **values) if isinstance(values, dict) else values
        config = replace(config, **{group: changed})
    return config


def quietly(config):
    """Train; the result and what was said."""
    console = Console(file=io.StringIO(), width=200)
    return train(config, console=console), console.file.getvalue()


def weights(folder):
    return read_checkpoint(Path(folder) / "checkpoint.pt")["model"]


def logs(folder):
    return {name: (Path(folder) / name).read_bytes() for name in FILES if (Path(folder) / name).exists()}


def assert_same_run(folder, reference):
    """Bit for bit: weights, optimizer, method, metrics, scalings."""
    mine, other = (read_checkpoint(Path(path) / "checkpoint.pt") for path in (folder, reference))
    for part in ("model", "optimizer", "method"):
        assert not differing(mine[part], other[part], part)
    assert logs(folder) == logs(reference)


def differing(mine, other, name):
    """Where two nested states differ."""
    if isinstance(mine, torch.Tensor):
        return [] if mine.dtype == other.dtype and torch.equal(mine, other) else [name]
    if isinstance(mine, dict) and isinstance(other, dict) and mine.keys() == other.keys():
        return [path for key in mine for path in differing(mine[key], other[key], f"{name}.{key}")]
    if isinstance(mine, list | tuple) and isinstance(other, list | tuple) and len(mine) == len(other):
        return [
            path for i, pair in enumerate(zip(mine, other, strict=True)) for path in differing(*pair, f"{name}.{i}")
        ]
    return [] if mine == other else [name]


class Process:
    """A process that runs the command line, as cheap as a fork: everything is imported already."""

    context = multiprocessing.get_context("forkserver")

    def __init__(self, *arguments, environment=None, limit_file_size=None, function=None):
        # The server that forks does not get this process's path, and silently does without what it cannot import.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        self.context.set_forkserver_preload(["support.training"])
        self._receive, send = self.context.Pipe(duplex=False)
        self._process = self.context.Process(
            target=_run, args=(send, arguments, environment or {}, limit_file_size, function)
        )
        self.started = time.monotonic()
        self._process.start()
        send.close()
        self._receive.recv()  # it runs

    @property
    def running(self):
        return self._process.is_alive()

    def kill(self):
        self._process.kill()
        self._process.join()

    def signal(self, number):
        os.kill(self._process.pid, number)

    def wait(self, timeout=120):
        """The exit code, the standard output and the standard error."""
        deadline = time.monotonic() + timeout
        output = ("", "")
        # Not for the pipe alone: when the process is killed, its workers keep the other end open for a while.
        wait([self._receive, self._process.sentinel], timeout)
        if self._receive.poll():
            with suppress(EOFError):
                output = self._receive.recv()
        self._process.join(max(0.1, deadline - time.monotonic()))
        if self._process.is_alive():
            self.kill()
            raise TimeoutError("the process did not end")
        return self._process.exitcode, *output


def _run(pipe, arguments, environment, limit_file_size, function):
    from spatialgrad.cli.main import main

    default_signals()  # whatever this process has inherited
    os.environ.update(environment)
    # Else processes that load images would come from another server, and import everything first.
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    if limit_file_size is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_file_size, limit_file_size))
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        pipe.send("running")
        code = function(*arguments) if function else main([str(argument) for argument in arguments])
    pipe.send((out.getvalue(), err.getvalue()))
    os._exit(code or 0)


def train_quietly(config):
    """For `Process(function=...)`."""
    quietly(config)
    return 0


def wait_for(condition, timeout=60):
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not happen")
        time.sleep(0.005)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_ranks(config, function=train_quietly, size=2):
    """Processes as torchrun starts them."""
    shared = {
        **{
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "TORCHELASTIC_RUN_ID": "test",
            "GROUP_RANK": "0",
        },
        **{"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)},
    }
    return [
        Process(config, function=function, environment={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(size)
    ]


def codes(processes):
    return [process.wait()[0] for process in processes]


def exit_code_of_training(config):
    from spatialgrad.train.errors import exit_code_of

    return exit_code_of(lambda: quietly(config))


def stop_after_seven_steps(config):
    with at_step(7, request_stop):
        return exit_code_of_training(config)


@contextmanager
def at_step(step, act):
    """Call a function with the trainer of any training from a step on; 0 is before the first one."""
    from spatialgrad.train.loop import Trainer

    save_or_stop, run = Trainer._save_or_stop, Trainer.run_epochs

    def after_step(self):
        if self.position.step >= step:
            act(self)
        save_or_stop(self)

    def start(self):
        if step == 0:
            after_step(self)
        run(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_save_or_stop", after_step)
        patch.setattr(Trainer, "run_epochs", start)
        yield


def request_stop(trainer):
    """As SIGTERM does."""
    trainer.stop.signal = signal.SIGTERM


def kill(trainer):
    """SIGKILL, for trainings in a `Process`."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop_at(step, config):
    """Train until SIGTERM comes right after a step."""
    with at_step(step, request_stop), pytest.raises(InterruptedTraining):
        quietly(config)
    assert read_checkpoint(config.folder / CHECKPOINT)["step"] == step


def assert_resumes(make, folder, *steps):
    """A training that is stopped after each of some steps, and resumed, ends as if it had not been: bit for bit.

    Args:
        make: Gives the config of the training in a folder.
        folder: For both of them.
        *steps: In order.
    """
    quietly(make(folder / "whole"))
    for step in steps:
        stop_at(step, make(folder / "run"))
    resume(folder / "run", console=SILENT)
    assert_same_run(folder / "run", folder / "whole")
