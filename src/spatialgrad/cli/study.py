"""``spatialgrad study``: list, show, run, status and archive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console, RenderableType

from spatialgrad.cli.data import DataRoot
from spatialgrad.cli.launching import LaunchOptions
from spatialgrad.cli.study_tables import describe_all, describe_status, describe_study
from spatialgrad.studies.archive import archive_study, open_study
from spatialgrad.studies.plan import make_plan
from spatialgrad.studies.record import STUDIES
from spatialgrad.studies.registry import find_studies, get_study, list_studies
from spatialgrad.studies.study import PaperScale
from spatialgrad.train.config import MachineConfig

PLACE = ("accelerator", "threads", "devices")
"""What the options decide about the machine of every run."""
WIDTH_OF_FILES = 320
"""Width of tables that are written to a file or a pipe."""

Name = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
Only = Annotated[tuple[str, ...], tyro.conf.arg(metavar="TEXT ...")]


def study_list() -> None:
    """List the studies: each is a table or a figure of the paper."""
    _print(describe_all(list_studies()))


def study_show(name: Name, scale: PaperScale = "paper", only: Only = ()) -> None:
    """Show what a study trains, beside the published values.

    Args:
        name: A name from `spatialgrad study list`.
        scale: paper, desk or pocket.
        only: Show only the arms whose group and label contain every word of one of these texts. The
            whole name of an arm selects that arm alone.
    """
    _print(describe_study(get_study(name), scale, only))


def study_run(
    name: Name,
    scale: PaperScale,
    seeds: int | None = None,
    only: Only = (),
    out: Path | None = None,
    launch: Annotated[LaunchOptions, tyro.conf.arg(name="")] = LaunchOptions(),  # noqa: B008 (frozen)
    root: DataRoot = None,
    note: str = "",
    archive: Path | None = None,
) -> None:
    """Run a study. Run the same command again to resume it and to retry failed runs.

    Args:
        name: A name from `spatialgrad study list`.
        scale: paper: the paper's networks, data and training. desk: evidence without a GPU. pocket: everything in
            minutes, no claims.
        seeds: Number of runs per arm, with seeds 0, 1, ...; a larger number extends an existing study.
        only: Run only the arms whose group and label contain every word of one of these texts. The
            whole name of an arm selects that arm alone.
        out: The study's folder; by default studies/NAME-SCALE.
        launch: Where the runs are trained.
        root: Folder of the data sets; by default $SPATIALGRAD_DATA.
        note: A remark to show in the report.
        archive: Archive each run in this folder as soon as it finishes, as `spatialgrad study archive` does. Runs that
            are archived there, by this study or another one, are not trained again.
    """
    study, machine = get_study(name), launch.within(MachineConfig())
    changes: dict[str, Any] = {f"machine.{field}": getattr(machine, field) for field in PLACE}
    if root is not None:
        changes["data.root"] = root.resolve()
    folder = STUDIES / f"{name}-{scale}" if out is None else out
    plan = make_plan(study, scale, folder, num_seeds=seeds, only=only, changes=changes, note=note)
    launch.run(plan, machine, archive=archive)


def study_status(study: Name) -> None:
    """Show the progress of a study, and why runs failed.

    Args:
        study: Folder of the study, or its name for all folders studies/NAME-SCALE.
    """
    for folder in find_studies(study):
        _print(describe_status(open_study(folder)))


def study_archive(study: Name, into: Path = Path("results")) -> None:
    """Archive the finished runs of a study in one small file, without weights, which `spatialgrad report` can read.

    Args:
        study: Folder of the study, or its name for all folders studies/NAME-SCALE.
        into: Folder of the archives; each study gets a file in it.
    """
    for folder in find_studies(study):
        print(archive_study(folder, into))


def _print(content: RenderableType) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_OF_FILES)
    console.print(content)
