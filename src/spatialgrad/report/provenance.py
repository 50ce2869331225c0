"""Provenance of a study's numbers: progress, hardware, versions, and the command to reproduce them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spatialgrad.report.results import RunResults, StudyResults
from spatialgrad.studies.record import StudyRecord

NO_CLAIM = "Pocket scale checks in minutes that the pipeline works. It makes no claim about accuracy."
SCALE_TEXTS = {
    "paper": "paper: the paper's networks, data and training",
    "desk": "desk: evidence without a GPU",
    "pocket": "pocket: the whole pipeline in minutes, no claim about accuracy",
}
MOST_WAITING = 10
"""Number of waiting runs, and of arms left out, that are listed; all are counted."""
MOST_NETWORKS = 6
"""Number of networks that are listed for a data set."""
ORDER = ("finished", "running", "interrupted", "waiting", "failed", "damaged")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A run that has not finished or is damaged, or a search whose choice is."""

    run: str
    seed: int | str
    """Empty for a search."""
    state: str
    progress: str
    message: str


def progress(study: StudyResults) -> str:
    """The progress of a study: "3 of 8 runs finished (1 running, 4 waiting); 2 of 6 arms left out"."""
    states, total = study.states, len(study.runs)
    rest = ", ".join(f"{states[state]} {state}" for state in ORDER[1:] if states[state])
    omitted, arms = len(study.record.omitted), len(study.record.omitted) + len(study.shown)
    left_out = f"; {omitted} of {arms} arms left out" if omitted else ""
    return f"{states['finished']} of {total} runs finished" + (f" ({rest})" if rest else "") + left_out


def trained(study: StudyResults) -> str:
    """The networks that were planned, with their widths, by data set: "vgg11-linear (width 0.25) on cifar100"."""
    networks: dict[str, list[str]] = {}
    for arm in study.arms:
        model, data = arm.record.config.model, arm.record.config.data
        name = model.name + ("" if model.width == 1 else f" (width {model.width})")
        networks.setdefault(data.name, []).append(name)
    parts = []
    for data_name, names in networks.items():
        several = list(dict.fromkeys(names))
        more = f" and {len(several) - MOST_NETWORKS} more" if len(several) > MOST_NETWORKS else ""
        parts.append(f"{', '.join(several[:MOST_NETWORKS])}{more} on {data_name}")
    return "; ".join(parts)


def facts(study: StudyResults) -> list[tuple[str, str]]:
    """Where the numbers come from, as names and values."""
    record, environments = study.record, [run.environment for run in study.runs if run.environment]
    versions = [each["versions"] for each in environments if "versions" in each]
    names = list(dict.fromkeys(name for each in versions for name in each))
    found = [
        ("Scale", SCALE_TEXTS.get(record.scale, record.scale)),
        ("Data", _several(run.result.dataset for run in study.runs if run.result is not None)),
        ("Seeds", ", ".join(map(str, record.seeds))),
        ("Runs", progress(study)),
        ("Commit", _several(_commit(each.get("commit")) for each in environments)),
        ("Machine", _several(_machine(each) for each in environments)),
        ("Python", _several(str(each.get("python", "")) for each in environments)),
        ("Versions", ", ".join(f"{name} {_several(str(each.get(name, '')) for each in versions)}" for name in names)),
        ("Dates", _dates(study.runs)),
    ]
    found = [(name, value or "not known yet") for name, value in found if (name, record.scale) != ("Scale", "own")]
    if record.omitted:
        more = f"; and {len(record.omitted) - MOST_WAITING} more" if len(record.omitted) > MOST_WAITING else ""
        found.insert(1, ("Left out", "; ".join(record.omitted[:MOST_WAITING]) + more))
    return found


def command(study: StudyResults) -> str:
    """The command that reproduces the study; several, in one line, if its arms have different numbers of seeds."""
    record = study.record
    if record.command:
        return record.command
    selections: dict[int, list[str]] = {}
    for arm in study.shown:
        selections.setdefault(len(arm.runs), []).append(" ".join([*arm.group, arm.label]))
    if len(selections) < 2:
        selections = {len(record.seeds): list(record.only)}
    return " && ".join(_study_run(record, seeds, only) for seeds, only in selections.items())


def _study_run(record: StudyRecord, seeds: int, only: Sequence[str]) -> str:
    name, scale = shlex.quote(record.name), shlex.quote(record.scale)
    selection = " ".join(["", "--only", *map(shlex.quote, only)]) if only else ""
    return f"spatialgrad study run {name} --scale {scale} --seeds {seeds}{selection}"


def problems(study: StudyResults) -> list[Problem]:
    """Runs that are failed, damaged or unfinished, and the first of those that wait."""
    unfinished = [run for run in study.runs if run.state != "finished"]
    omitted = {run.name for run in [run for run in unfinished if run.state == "waiting"][MOST_WAITING:]}
    searches = [
        Problem(run=f"searches/{search.record.name}", seed="", state="damaged", progress="", message=search.problem)
        for search in study.searches
        if search.problem
    ]
    return searches + [
        Problem(
            run=run.name,
            seed=run.seed,
            state=run.state,
            progress=f"{run.epoch} of {run.epochs} epochs" if run.epochs else "",
            message=run.message,
        )
        for run in unfinished
        if run.name not in omitted
    ]


def _machine(environment: Mapping[str, Any]) -> str:
    device, processes = str(environment.get("device", "")), environment.get("processes")
    cpu = f"{environment.get('cpu', 'unknown processor')}, {environment.get('cores', '?')} cores"
    threads = environment.get("threads", "?")
    threads = f", {threads} thread{'' if threads == 1 else 's'} per process"
    where = cpu if device in ("cpu", "") else f"{device}; {cpu}"
    return (f"{processes} × " if isinstance(processes, int) and processes > 1 else "") + where + threads


def _commit(commit: str | None) -> str:
    if not commit:
        return "installed package, no commit"
    changed = " with local changes" if commit.endswith("-changed") else ""
    return f"{commit.removesuffix('-changed')[:12]}{changed}"


def _dates(runs: Iterable[RunResults]) -> str:
    starts = sorted(start for run in runs for start in run.starts)
    days = list(dict.fromkeys((starts[0][:10], starts[-1][:10]))) if starts else []
    return " to ".join(days)


def _several(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, values)))
