"""``spatialgrad study``: list, show, run, status and archive."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Group, RenderableType
from rich.text import Text

from spatialgrad.cli.data import DataRoot
from spatialgrad.cli.launching import LaunchOptions
from spatialgrad.cli.terminal import Rows, terminal
from spatialgrad.studies.archive import StudyOnDisk, archive_study, open_study
from spatialgrad.studies.console import counted
from spatialgrad.studies.plan import choose, count_runs, make_plan
from spatialgrad.studies.record import STUDIES
from spatialgrad.studies.registry import find_studies, get_study, list_studies
from spatialgrad.studies.status import RunStatus, format_metric, run_status
from spatialgrad.studies.study import SCALES, PaperScale, Published, Scale, Study
from spatialgrad.train.config import MachineConfig, flatten, to_dict
from spatialgrad.train.errors import ConfigError
from spatialgrad.train.run import Run

PLACE = ("accelerator", "threads", "devices")
"""What the options decide about the machine of every run."""
UNSEEN = ("seed", "out", "tensorboard", "data.root")
"""Fields that do not characterise an arm."""

Name = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
Only = Annotated[tuple[str, ...], tyro.conf.arg(metavar="TEXT ...")]


def study_list() -> None:
    """List the studies: tables and figures of the paper, and questions of our own."""
    terminal().print(describe_all(list_studies()))


def study_show(name: Name, scale: PaperScale = "paper", only: Only = ()) -> None:
    """Show what a study trains, beside the published values.

    Args:
        name: A name from `spatialgrad study list`.
        scale: paper, desk or pocket.
        only: Show only the arms whose group and label contain every word of one of these texts. The
            whole name of an arm selects that arm alone.
    """
    terminal().print(describe_study(get_study(name), scale, only))


def study_run(
    name: Name,
    scale: PaperScale | None = None,
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
        scale: Must be given. paper: the paper's networks, data and training. desk: evidence without a GPU. pocket:
            everything in minutes, no claims.
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
    if scale is None:
        raise ConfigError("\n  ".join(["--scale is missing; choose one:", *_scales(study)]))
    changes: dict[str, Any] = {f"machine.{field}": getattr(machine, field) for field in PLACE}
    if root is not None:
        changes["data.root"] = root.resolve()
    folder = STUDIES / f"{study.name}-{scale}" if out is None else out
    plan = make_plan(study, scale, folder, num_seeds=seeds, only=only, changes=changes, note=note)
    launch.run(plan, machine, archive=archive)


def study_status(study: Name) -> None:
    """Show the progress of a study, and why runs failed.

    Args:
        study: Folder of the study, or its name for all folders studies/NAME-SCALE.
    """
    for folder in find_studies(study):
        terminal().print(describe_status(open_study(folder)))


def study_archive(study: Name, into: Path = Path("results")) -> None:
    """Archive the finished runs of a study in one small file, without weights, which `spatialgrad report` can read.

    Args:
        study: Folder of the study, or its name for all folders studies/NAME-SCALE.
        into: Folder of the archives; each study gets a file in it.
    """
    for folder in find_studies(study):
        print(archive_study(folder, into))


def describe_all(studies: Iterable[Study]) -> RenderableType:
    """All studies: place in the paper, question, and number of runs and duration at each scale."""
    lines = []
    for study in studies:
        lines.append(f"{study.name:<20} {study.shows}\n  {study.question}\n  {' · '.join(_scales(study))}")
    return Text("\n".join(lines))


def _scales(study: Study) -> list[str]:
    """Number of runs and duration at each scale."""
    runs = {scale: counted(count_runs(study, scale), "run") for scale in SCALES}
    return [f"{scale}: {number}, {study.times.get(scale, 'duration unknown')}" for scale, number in runs.items()]


def describe_study(study: Study, scale: Scale, only: tuple[str, ...] = ()) -> RenderableType:
    """The arms of a study with the published values and the exact settings."""
    arms, plan = choose(study.arms(scale), only), make_plan(study, scale, Path("nowhere"), only=only)
    settings = [flatten(to_dict(arm.config)) for arm in arms]
    common = {
        name: value
        for name, value in settings[0].items()
        if name not in UNSEEN and all(other[name] == value for other in settings)
    }
    table = Rows((*arms[0].group, "arm", "published", "specific settings"))
    for arm, values in zip(arms, settings, strict=True):
        own = [f"{k} {_plain(v)}" for k, v in values.items() if k not in common and k not in UNSEEN]
        if arm.tuned_by is not None:
            own.append(f"tuned by the search {arm.tuned_by}")
        if arm.backbone is not None:
            own.append(f"starts from {arm.backbone}")
        published = "; ".join(describe_published(each, study.cost_unit) for each in arm.published)
        if arm.published_for:
            published = f"{arm.published_for}: {published}"
        table.add(*arm.group.values(), arm.label, published or "–", ", ".join(own))
    numbers = {"arm": len(arms), "seed": study.num_seeds[scale], "run": len(plan.jobs)}
    counts = [counted(number, noun) for noun, number in numbers.items()]
    duration = study.times.get(scale, "duration unknown") if not only else "part of the study"
    parts: list[RenderableType] = [
        Text(f"{study.title_at(scale)} ({study.shows})\n{study.question}\n"),
        Text(f"scale {scale}: {study.differences.get(scale, '')}"),
        Text(f"{', '.join(counts)} in total, {duration}\n"),
        table,
        Text("\ncommon settings:\n" + _by_group(common)),
    ]
    notes = {arm.note: arm for arm in arms if arm.note}
    parts += [Text(f"note on {', '.join(arm.group.values())} · {arm.label}: {note}") for note, arm in notes.items()]
    wanted = {search.name for search in plan.searches}
    for search in (search for search in study.searches(scale) if search.name in wanted):
        grid = ", ".join(f"{name} in {', '.join(map(_plain, values))}" for name, values in search.grid.items())
        points = math.prod(map(len, search.grid.values()))
        held_out = search.config.data.validation
        where = f"evaluated on {100 * held_out:g} % of the training images"
        parts.append(Text(f"search {search.name}: {grid} ({points} points, {where})"))
    return Group(*parts)


def _by_group(settings: Mapping[str, Any]) -> str:
    """Settings with a line for each group: "  budget: epochs 600, evaluate_every 1"."""
    groups: dict[str, list[str]] = {}
    for name, value in settings.items():
        group, _, field = name.rpartition(".")
        groups.setdefault(group or "training", []).append(f"{field} {_plain(value)}")
    return "\n".join(f"  {group}: {', '.join(values)}" for group, values in groups.items())


def describe_published(value: Published, cost_unit: str | None) -> str:
    """A published value in one line."""
    parts = [f"{value.mean:g}" + (f" ± {value.std:g}" if value.std is not None else "")]
    if value.cost is not None:
        parts.append(f"{value.cost:g} {cost_unit or ''}".strip())
    if value.macs is not None:
        parts.append(f"{value.macs / 1e6:,.0f} M MACs")
    if value.parameters is not None:
        parts.append(f"{value.parameters / 1e6:g} M parameters")
    quoted = "" if value.source == "paper" else f" ({value.source})"
    return ", ".join(parts) + quoted


def describe_status(study: StudyOnDisk) -> RenderableType:
    """Progress of every arm and search, and why runs failed."""
    record, planned = study.record, study.record.planned_configs(study.choices)
    seen = {name: run_status(run, planned[name]) for name, run in study.runs.items()}
    columns = list(dict.fromkeys(name for arm in record.arms for name in arm.group))
    table = Rows((*columns, "arm", "runs", "result"))
    for search in record.searches:
        states = [seen[run.folder] for point in search.points for run in point.runs]
        best = study.problems.get(search.name) or _best(study.choices.get(search.name))
        table.add(*[""] * len(columns), f"search {search.name}", _summary(states), best)
    for arm in record.arms:
        states = [seen[run.folder] for run in arm.runs]
        mean = _mean([study.runs[run.folder] for run in arm.runs if seen[run.folder].state == "finished"])
        cells = [arm.group.get(name, "") for name in columns]
        table.add(*cells, arm.label, _summary(states), mean)
    counts = Counter(status.state for status in seen.values())
    total = ", ".join(f"{number} {state}" for state, number in counts.items())
    parts: list[RenderableType] = [
        Text(f"{record.heading}: {counted(len(seen), 'run')}, {total}\n"),
        table,
    ]
    for name, status in seen.items():
        if status.message:
            parts.append(Text(f"\n{status.state}: {study.path / name}\n  " + status.message.replace("\n", "\n  ")))
    return Group(*parts)


def _summary(states: list[RunStatus]) -> str:
    counts = Counter(status.state for status in states)
    parts = [f"{number} {state}" for state, number in counts.items()]
    for status in states:
        if status.state in ("running", "interrupted") and status.epochs:
            parts.append(f"epoch {status.epoch}/{status.epochs}")
    return ", ".join(parts)


def _mean(finished: Sequence[Run]) -> str:
    known = [run.result for run in finished if run.result is not None]
    if not known:
        return "–"
    # Not the study's metric: a backbone has another one.
    shown = format_metric(known[0].metric, sum(each.value for each in known) / len(known))
    return shown + (f" (mean of {len(known)})" if len(known) > 1 else "")


def _best(values: Mapping[str, Any] | None) -> str:
    if values is None:
        return "–"
    return "best: " + ", ".join(f"{name.rpartition('.')[2]} {_plain(value)}" for name, value in values.items())


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
