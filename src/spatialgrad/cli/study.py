"""The subcommands of ``spatialgrad study``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from tyro.extras import SubcommandApp

from spatialgrad.cli.study_tables import describe_all, describe_status, describe_study
from spatialgrad.data.registry import data_root, find_source
from spatialgrad.studies.errors import FailedRunsError
from spatialgrad.studies.plan import Plan, make_plan
from spatialgrad.studies.record import STUDY, read_study
from spatialgrad.studies.registry import STUDIES, get_study, list_studies
from spatialgrad.studies.study import Scale
from spatialgrad.train.config.groups import check_name
from spatialgrad.train.errors import ConfigError

FOLDER = Path("studies")
"""Where studies go by default."""
WIDTH_OF_FILES = 320
"""Of tables that go into a file or a pipe."""

Name = tyro.conf.Positional[str]
Only = Annotated[tuple[str, ...], tyro.conf.arg(metavar="TEXT ...")]


def study_list() -> None:
    """List the studies: each is a table or a figure of the paper."""
    _print(describe_all(list_studies()))


def study_show(name: Name, scale: Scale = "paper", only: Only = ()) -> None:
    """Show what a study trains, beside what the paper prints.

    Args:
        name: One of `spatialgrad study list`.
        scale: paper, desk or pocket.
        only: Arms that contain every word of one of these texts.
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
    root: Annotated[Path | None, tyro.conf.arg(name="data-root")] = None,
    cpus_per_run: int | None = None,
    gpus_per_run: float | None = None,
    ray_address: str | None = None,
    note: str = "",
) -> None:
    """Run a study; the same command again goes on where it was left, and tries failed runs again.

    Args:
        name: One of `spatialgrad study list`.
        scale: paper: the published settings. desk: evidence without a GPU. pocket: everything in minutes, no claims.
        seeds: Runs of each arm, with the seeds 0, 1, ...; more of them later extend the study.
        only: Run the arms that contain every word of one of these texts in group or label.
        out: The study's folder; by default studies/NAME-SCALE.
        launcher: local: processes on this machine. ray: a Ray cluster.
        jobs: Runs at once; 1 on this machine, and as many as there is room for on a cluster.
        processes: Processes of each run, through torchrun: one per GPU.
        accelerator: Kind of device.
        threads: CPU threads of each process; by default the cores, divided by the runs at once.
        root: Folder of the data sets; by default $SPATIALGRAD_DATA.
        cpus_per_run: For ray: CPUs that a run takes; by default its threads times its processes.
        gpus_per_run: For ray: GPUs that a run takes; by default one per process if the cluster has any.
        ray_address: For ray: the cluster; by default $RAY_ADDRESS, a cluster on this machine, or a new one.
        note: A remark, for the report.
    """
    study = get_study(name)
    _at_least_one(jobs=jobs, processes=processes, threads=threads, cpus_per_run=cpus_per_run)
    if launcher != "ray":
        given = {"--cpus-per-run": cpus_per_run, "--gpus-per-run": gpus_per_run, "--ray-address": ray_address}
        without = [option for option, value in given.items() if value is not None]
        if without:
            raise ConfigError(f"{', '.join(without)} goes with --launcher ray only")
    if threads is None:
        threads = cpus_per_run // processes if cpus_per_run else _usable_cores() // ((jobs or 1) * processes)
        threads = max(1, threads)
    changes: dict[str, Any] = {"machine.accelerator": accelerator, "machine.threads": threads}
    if processes == 1:
        changes["machine.devices"] = 1
    if root is not None:
        changes["data.root"] = root.resolve()
    folder = FOLDER / f"{name}-{scale}" if out is None else out
    plan = make_plan(study, scale, folder, num_seeds=seeds, only=only, changes=changes, note=note)

    # Optuna and Ray take a second to load.
    from spatialgrad.studies.run.local import Launcher, LocalLauncher, visible_gpus

    chosen: Launcher
    if launcher == "ray":
        from spatialgrad.studies.run.ray import RayLauncher

        cpus = cpus_per_run or threads * processes
        chosen = RayLauncher(ray_address, jobs=jobs, cpus=cpus, gpus=gpus_per_run, processes=processes, threads=threads)
    else:
        check_data(plan)
        chosen = LocalLauncher(jobs or 1, threads, visible_gpus() if accelerator in ("auto", "cuda") else ())
    run_plan(plan, chosen, processes)


def run_plan(plan: Plan, launcher: Any, processes: int = 1) -> None:
    """Run a plan and tell how it went.

    Raises:
        FailedRunsError: If runs have failed; all others have finished.
        InterruptedTraining: If a signal came.
    """
    from spatialgrad.studies.run.console import StudyReporter
    from spatialgrad.studies.run.runner import Runner
    from spatialgrad.train.engine.signals import Stop

    reporter = StudyReporter()
    record = plan.record
    reporter.message(
        f"{record.title} ({record.shows}), scale {record.scale}\n  {record.differences}\n  in {plan.folder}"
    )
    stop = Stop(lambda text: reporter.message(text.replace("finishing the step", "runs are finishing their steps")))
    with stop.listening():
        outcome = Runner(plan, launcher, reporter, stop, processes=processes).run()
    troubled = {**outcome.failed, **outcome.blocked}
    if troubled:
        lines = [f"  {folder}: {(message.splitlines() or [''])[0]}" for folder, message in troubled.items()]
        raise FailedRunsError(
            "\n".join([f"{len(troubled)} of {len(plan.jobs)} runs have no result:", *lines])
            + f"\nAll others have. What they said is in output.txt; the same command tries them again.\n"
            f"To see the rest: spatialgrad report {plan.folder}"
        )
    reporter.message(f"All {len(plan.jobs)} runs are finished. To see them: spatialgrad report {plan.folder}")


def check_data(plan: Plan) -> None:
    """Look for the data sets of all runs before the first one starts.

    Raises:
        MissingDataError: If one is not there; the message says how to get it.
    """
    for name, root in {(job.config.data.name, job.config.data.root) for job in plan.jobs}:
        source, folder = find_source(name), data_root(root)
        if source.locate(folder) is None:
            source.load(folder)


def study_status(study: Name) -> None:
    """Show how far a study is, and why runs have failed.

    Args:
        study: Its folder, or its name: then all folders of studies/NAME-*.
    """
    folders = [Path(study)] if (Path(study) / STUDY).exists() else sorted(FOLDER.glob(f"{study}-*/{STUDY}"))
    if not folders:
        if not Path(study).is_dir():
            check_name("study", study, STUDIES)
        raise ConfigError(
            f"there is no study in {study}, nor in {FOLDER}/{study}-*; see `spatialgrad study run --help`"
        )
    for path in folders:
        folder = path.parent if path.name == STUDY else path
        _print(describe_status(folder, read_study(folder)))


def build_study_app() -> SubcommandApp:
    """The subcommands."""
    app = SubcommandApp()
    app.command(name="list")(study_list)
    app.command(name="show")(study_show)
    app.command(name="run")(study_run)
    app.command(name="status")(study_status)
    return app


def _print(what: Any) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_OF_FILES)
    console.print(what)


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _at_least_one(**values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < 1:
            raise ConfigError(f"invalid --{name.replace('_', '-')}: {value} must be at least 1")
