"""``spatialgrad study``: list, show, run, status and keep."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console, RenderableType

from spatialgrad.cli.data import DataRoot
from spatialgrad.cli.study_tables import describe_all, describe_status, describe_study
from spatialgrad.studies.find import find_studies
from spatialgrad.studies.plan import make_plan
from spatialgrad.studies.record import STUDIES, read_study
from spatialgrad.studies.registry import get_study, list_studies
from spatialgrad.studies.study import Scale
from spatialgrad.train.errors import ConfigError

WIDTH_OF_FILES = 320
"""Width of tables that are written to a file or a pipe."""

Name = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
Only = Annotated[tuple[str, ...], tyro.conf.arg(metavar="TEXT ...")]


def study_list() -> None:
    """List the studies: each is a table or a figure of the paper."""
    _print(describe_all(list_studies()))


def study_show(name: Name, scale: Scale = "paper", only: Only = ()) -> None:
    """Show what a study trains, beside the published values.

    Args:
        name: A name from `spatialgrad study list`.
        scale: paper, desk or pocket.
        only: Show only the arms whose group and label contain every word of one of these texts.
    """
    _print(describe_study(get_study(name), scale, only))


def study_run(
    name: Name,
    scale: Scale,
    seeds: int | None = None,
    only: Only = (),
    out: Path | None = None,
    launcher: Literal["local", "ray"] = "local",
    jobs: int | None = None,
    processes: int = 1,
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    threads: int | None = None,
    root: DataRoot = None,
    cpus_per_run: int | None = None,
    gpus_per_run: float | None = None,
    ray_address: str | None = None,
    note: str = "",
    keep: Path | None = None,
) -> None:
    """Run a study. Run the same command again to resume it and to retry failed runs.

    Args:
        name: A name from `spatialgrad study list`.
        scale: paper: the paper's networks, data and training. desk: evidence without a GPU. pocket: everything in
            minutes, no claims.
        seeds: Number of runs per arm, with seeds 0, 1, ...; a larger number extends an existing study.
        only: Run only the arms whose group and label contain every word of one of these texts.
        out: The study's folder; by default studies/NAME-SCALE.
        launcher: local: processes on this machine. ray: a Ray cluster.
        jobs: Number of runs at a time; by default 1 on this machine, and as many as fit on a cluster.
        processes: Number of processes per run, through torchrun: one per GPU.
        accelerator: Device type.
        threads: CPU threads per process; by default the cores, divided by the number of runs at a time.
        root: Folder of the data sets; by default $SPATIALGRAD_DATA.
        cpus_per_run: With --launcher ray: CPUs per run; by default threads times processes.
        gpus_per_run: With --launcher ray: GPUs per run; by default one per process if the cluster has any.
        ray_address: With --launcher ray: the cluster; by default $RAY_ADDRESS, a cluster on this machine, or a new one.
        note: A remark to show in the report.
        keep: Keep each run as a small file in this folder as soon as it finishes, as `spatialgrad study keep` does.
    """
    study = get_study(name)
    _at_least_one(jobs=jobs, processes=processes, threads=threads, cpus_per_run=cpus_per_run)
    if launcher != "ray":
        given = {"--cpus-per-run": cpus_per_run, "--gpus-per-run": gpus_per_run, "--ray-address": ray_address}
        ignored = [option for option, value in given.items() if value is not None]
        if ignored:
            raise ConfigError(f"{', '.join(ignored)} can only be used with --launcher ray")
    if threads is None:
        threads = cpus_per_run // processes if cpus_per_run else _usable_cores() // ((jobs or 1) * processes)
        threads = max(1, threads)
    changes: dict[str, Any] = {"machine.accelerator": accelerator, "machine.threads": threads}
    if processes == 1:
        changes["machine.devices"] = 1
    if root is not None:
        changes["data.root"] = root.resolve()
    folder = STUDIES / f"{name}-{scale}" if out is None else out
    plan = make_plan(study, scale, folder, num_seeds=seeds, only=only, changes=changes, note=note)

    # Optuna and Ray take a second to import.
    from spatialgrad.studies.run.local import LocalLauncher, visible_gpus
    from spatialgrad.studies.run.runner import check_data, run_plan

    if launcher == "ray":
        from spatialgrad.studies.run.ray import RayLauncher

        cpus = cpus_per_run or threads * processes
        ray = RayLauncher(ray_address, jobs=jobs, cpus=cpus, gpus=gpus_per_run, processes=processes, threads=threads)
        run_plan(plan, ray, processes=processes, keep=keep)
    else:
        check_data(plan)
        gpus = visible_gpus() if accelerator in ("auto", "cuda") else ()
        run_plan(plan, LocalLauncher(jobs or 1, threads, gpus), processes=processes, keep=keep)


def study_status(study: Name) -> None:
    """Show the progress of a study, and why runs failed.

    Args:
        study: Folder of the study, or its name for all folders studies/NAME-SCALE.
    """
    for folder in find_studies(study):
        _print(describe_status(folder, read_study(folder)))


def study_keep(study: Name, into: Path = Path("results")) -> None:
    """Keep the finished runs of a study as small files, without weights, which `spatialgrad report` can read.

    Args:
        study: Folder of the study, or its name for all folders studies/NAME-SCALE.
        into: Folder of the kept studies; each gets a folder of its own in it.
    """
    from spatialgrad.studies.kept import keep_study

    for folder in find_studies(study):
        print(keep_study(folder, into))


def _print(content: RenderableType) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_OF_FILES)
    console.print(content)


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _at_least_one(**values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
