"""Where the runs of a study are trained: the options that all commands with several runs share."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from spatialgrad.data.registry import data_root, find_source, is_folder
from spatialgrad.studies.launch import Executor, LocalExecutor, visible_gpus
from spatialgrad.studies.plan import Plan
from spatialgrad.train.config import MachineConfig, TrainConfig, with_values
from spatialgrad.train.flags import require


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchOptions:
    """Where the runs are trained, and how many at a time."""

    launcher: Literal["local", "ray"] = "local"
    """local: processes on this machine. ray: a Ray cluster."""
    jobs: int | None = None
    """Number of runs at a time; by default one per --processes GPUs, or 1 without a GPU; on a cluster, what fits."""
    processes: int = 1
    """Number of processes per run, through torchrun: one per GPU."""
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device type."""
    threads: int | None = None
    """CPU threads per process; by default an equal share of the cores, or on a cluster of the CPUs of a run."""
    cpus_per_run: int | None = None
    """With --launcher ray: CPUs per run; by default a GPU's share of its node, or at most 4 without a GPU."""
    gpus_per_run: float | None = None
    """With --launcher ray: GPUs per run; by default one per process if the cluster has any."""
    ray_address: str | None = None
    """With --launcher ray: the cluster; by default $RAY_ADDRESS, a cluster on this machine, or a new one."""

    def __post_init__(self) -> None:
        for name in ("jobs", "processes", "threads", "cpus_per_run"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "must be at least 1")
        for name in ("cpus_per_run", "gpus_per_run", "ray_address"):
            value = getattr(self, name)
            require(value is None or self.launcher == "ray", name, value, "can only be used with --launcher ray")

    def within(self, machine: MachineConfig) -> MachineConfig:
        """What a config says about its machine, with these options in place of what they decide."""
        if self.accelerator != "auto":
            machine = replace(machine, accelerator=self.accelerator)
        if self.processes == 1:
            machine = replace(machine, devices=1)
        threads = self.threads or machine.threads
        if threads is None and self.launcher == "local":  # the nodes of a cluster may have other numbers of cores
            threads = max(1, usable_cores() // (self.slots(machine) * self.processes))
        return replace(machine, threads=threads)

    def placed(self, config: TrainConfig) -> TrainConfig:
        """A config with these options; runs may start in another folder, and find their data from there."""
        config, root = replace(config, machine=self.within(config.machine)), config.data.root
        return config if root is None else with_values(config, {"data.root": root.resolve()})

    def check_data(self, *configs: TrainConfig) -> None:
        """Check the data sets of all runs before anything is written; no image of class folders is opened.

        Nothing is checked for a cluster, whose machines may have other folders.

        Raises:
            DataError: If one is missing, or class folders hold no images; the message says how to get it.
        """
        for name, root in dict.fromkeys((config.data.name, config.data.root) for config in configs):
            source, folder = find_source(name), data_root(root)
            if self.launcher == "local" and (is_folder(source.name) or source.locate(folder) is None):
                source.load(folder)

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
        from spatialgrad.studies.runner import run_plan

        self.check_data(*(job.config for job in plan.jobs))
        run_plan(plan, self.open(machine), processes=self.processes, archive=archive)

    def slots(self, machine: MachineConfig) -> int:
        """Number of runs at a time on this machine."""
        return self.jobs or max(1, len(_gpus(machine)) // self.processes)


def _gpus(machine: MachineConfig) -> list[str]:
    return visible_gpus() if machine.accelerator in ("auto", "cuda") else []


def usable_cores() -> int:
    """Number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
