"""Where the runs of a study are trained: the options that all commands with several runs share."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from spatialgrad.data.registry import data_root, find_source, is_folder
from spatialgrad.studies.launch import Executor, LocalExecutor, visible_gpus
from spatialgrad.studies.plan import Plan
from spatialgrad.train.config import MachineConfig, TrainConfig
from spatialgrad.train.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchOptions:
    """Where the runs are trained, and how many at a time."""

    launcher: Literal["local", "ray"] = "local"
    """local: processes on this machine. ray: a Ray cluster."""
    jobs: int | None = None
    """Number of runs at a time; by default one per GPU of this machine, divided by --processes, and 1 without a GPU; on
    a cluster as many as fit."""
    processes: int = 1
    """Number of processes per run, through torchrun: one per GPU."""
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device type."""
    threads: int | None = None
    """CPU threads per process; by default the cores, divided by the number of runs at a time; on a cluster the CPUs of
    a run."""
    cpus_per_run: int | None = None
    """With --launcher ray: CPUs per run; by default threads times processes, or a node's CPUs per GPU, or at most 4."""
    gpus_per_run: float | None = None
    """With --launcher ray: GPUs per run; by default one per process if the cluster has any."""
    ray_address: str | None = None
    """With --launcher ray: the cluster; by default $RAY_ADDRESS, a cluster on this machine, or a new one."""

    def __post_init__(self) -> None:
        for name in ("jobs", "processes", "threads", "cpus_per_run"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
        if self.launcher != "ray":
            given = [
                name for name in ("cpus_per_run", "gpus_per_run", "ray_address") if getattr(self, name) is not None
            ]
            if given:
                flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
                raise ConfigError(f"{flags} can only be used with --launcher ray")

    def within(self, machine: MachineConfig) -> MachineConfig:
        """What a config says about its machine, with these options in place of what they decide."""
        changes: dict[str, Any] = {}
        if self.accelerator != "auto":
            changes["accelerator"] = self.accelerator
        if self.processes == 1:
            changes["devices"] = 1
        machine = replace(machine, **changes)
        return replace(machine, threads=self.threads or machine.threads or self._share_of_cores(machine))

    def check_data(self, config: TrainConfig) -> None:
        """Check the data set before anything is written; no image of class folders is opened.

        Nothing is checked for a cluster, whose machines may have other folders.

        Raises:
            DataError: If it is missing, or class folders hold no images.
        """
        source, root = find_source(config.data.name), data_root(config.data.root)
        if self.launcher == "local" and (is_folder(source.name) or source.locate(root) is None):
            source.load(root)

    def open(self, machine: MachineConfig) -> Executor:
        """An executor; it is closed by those who run with it.

        Args:
            machine: Of the runs, as `within` returns it.
        """
        if self.launcher == "ray":
            from spatialgrad.studies.ray import RayExecutor

            return RayExecutor(
                self.ray_address,
                jobs=self.jobs,
                cpus=self.cpus_per_run,
                gpus=self.gpus_per_run,
                processes=self.processes,
                threads=machine.threads,
            )
        return LocalExecutor(self.slots(machine), machine.threads, _gpus(machine))

    def run(self, plan: Plan, machine: MachineConfig, *, archive: Path | None = None) -> None:
        """Run a plan; see `run_plan`.

        Args:
            plan: The runs.
            machine: Theirs, as `within` returns it.
            archive: Folder of archives, to which each finished run is added at once.
        """
        from spatialgrad.studies.runner import check_data, run_plan

        if self.launcher == "local":
            check_data(plan)
        run_plan(plan, self.open(machine), processes=self.processes, archive=archive)

    def _share_of_cores(self, machine: MachineConfig) -> int | None:
        """Threads per process; None on a cluster, whose nodes may have another number of cores than this machine."""
        if self.launcher == "ray":
            return None
        return max(1, usable_cores() // (self.slots(machine) * self.processes))

    def slots(self, machine: MachineConfig) -> int:
        """Number of runs at a time on this machine."""
        return self.jobs or max(1, len(_gpus(machine)) // self.processes)


def _gpus(machine: MachineConfig) -> list[str]:
    return visible_gpus() if machine.accelerator in ("auto", "cuda") else []


def usable_cores() -> int:
    """Number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
