"""What a session of a run prints and records: where it starts, its environment, and the result."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from spatialgrad.models.external import describe_source, is_external
from spatialgrad.reparam import Count
from spatialgrad.train.config import flatten
from spatialgrad.train.console import Reporter, duration, show_metric
from spatialgrad.train.learner import Learner
from spatialgrad.train.result import INT8_METRICS, Result
from spatialgrad.train.run import TIMINGS, Run
from spatialgrad.train.runtime import Runtime

PACKAGES = ("spatialgrad", "torch", "numpy", "lightning-fabric", "numba")


def describe_start(learner: Learner, epoch: int, step: int) -> str:
    """The training in a few lines.

    Args:
        learner: Of the training.
        epoch: Number of completed epochs.
        step: Number of completed steps.
    """
    config, runtime, folder = learner.config, learner.runtime, learner.config.folder
    where = f"{runtime.world_size} × {runtime.device.type}" if runtime.world_size > 1 else runtime.device.type
    resuming = f"\n  resuming    after step {step} (epoch {epoch + 1})" if step else ""
    reason = learner.method.no_effect_reason()
    warning = "" if reason is None else f"\n{config.method.name} has no effect in this training: {reason}."
    return (
        f"{config.model.name} on {learner.task.description}, method {config.method.name}, seed {config.seed}\n"
        f"  network     {learner.cost}\n"
        f"  schedule    {config.budget.epochs} epochs of {learner.steps_per_epoch} steps, batch "
        f"{config.data.batch_size}, {config.optimizer.name}, learning rate {config.optimizer.learning_rate:g}\n"
        f"  machine     {where}, {config.machine.precision}\n"
        f"  folder      {folder} (config, metrics, scalings, checkpoint)\n"
        f"  resume      the same command, or: spatialgrad resume {shlex.quote(str(folder))}{resuming}{warning}"
    )


def describe_result(result: Result, folder: Path) -> str:
    """The result in a few lines."""
    merged = ""
    if result.merge_difference is not None:
        before = Count(result.training_parameters, result.training_macs)
        merged = f"\n  merged      from {before}; largest difference {result.merge_difference:.0e}"
    share = result.update_seconds / result.seconds if result.seconds else 0.0
    value, best = (show_metric(result.metric, number) for number in (result.value, result.best))
    measured = f"on the test images of {result.dataset} (best epoch {best})"
    if result.metric not in result.trained:
        measured = f"after {result.steps} steps on {result.dataset}"
    if f"{result.metric}_int8" in result.test:
        shown = [show_metric(result.metric, result.test[f"{result.metric}_{each}"] or 0.0) for each in INT8_METRICS]
        measured += "\n  INT8        {} ({} with one scale per layer)".format(*shown)
    note = f"\n  note        {result.method} had no effect: {result.no_effect}" if result.no_effect else ""
    return (
        f"{result.metric} {value} {measured}\n"
        f"  network     {Count(result.parameters, result.macs)}{merged}\n"
        f"  time        {duration(result.seconds)}, of which updates {100 * share:.1f} %\n"
        f"  memory      {result.peak_memory_bytes / 2**20:,.0f} MB peak\n"
        f"  folder      {folder}\n"
        f"  export      spatialgrad export {shlex.quote(str(folder))} --onnx{note}"
    )


def record_session(run: Run, runtime: Runtime, step: int, reporter: Reporter) -> None:
    """Write the environment of the first session, or report how that of a later one differs.

    Args:
        run: The claimed run.
        runtime: Its processes.
        step: At which the session starts.
        reporter: For messages.
    """
    environment, model = describe_environment(runtime.device, runtime.world_size), run.config.model.name
    if is_external(model):
        environment["model"] = describe_source(model)
    session = {"session": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "step": step}
    if not run.environment:
        run.record_environment(environment)
    else:
        before, now = flatten(run.environment), flatten(environment)
        changed = {name: value for name, value in now.items() if name != "command" and before.get(name) != value}
        if changed:
            session["changed"] = changed
            names = ", ".join(changed)
            reporter.message(f"The environment has changed ({names}): results may differ in the last digits.")
            if not changed.keys().isdisjoint(("model.sha256", "model.version")):
                reporter.message(f"{model} is built by other code than in the first session.")
    run.log(TIMINGS, session)


def describe_environment(device: torch.device, world_size: int) -> dict[str, Any]:
    """Everything that may affect a result or its speed, as JSON values."""
    return {
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "commit": _commit(),
        "system": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": _memory(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cuda": torch.version.cuda,
        "processes": world_size,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def _version(package: str) -> str | None:
    if package == "spatialgrad":
        # Of the code that runs, which need not be installed; importing the package here would be a cycle.
        return str(sys.modules[package].__version__)
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the source tree, marked if files were changed since; None if the package is installed."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True, timeout=10
        )
        return done.stdout.strip()

    try:
        if not git("ls-files", Path(__file__).name):
            return None  # in someone else's repository
        return git("rev-parse", "HEAD") + ("-changed" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):  # not available on every system
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
