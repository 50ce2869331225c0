"""What a study is, and how far it has come, as tables on a terminal."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from spatialgrad.studies.plan import choose, count_runs, make_plan
from spatialgrad.studies.record import RunRecord, StudyRecord, best_file
from spatialgrad.studies.run.status import RunStatus, run_status
from spatialgrad.studies.study import SCALES, Published, Scale, Study
from spatialgrad.train.config.io import flatten, to_dict
from spatialgrad.train.runs.console import show_metric
from spatialgrad.train.runs.folder import RESULT

UNSEEN = ("seed", "out", "tensorboard", "data.root")
"""Fields that say nothing about an arm."""


def describe_all(studies: Iterable[Study]) -> RenderableType:
    """Every study: where it is in the paper, what it asks, how many runs each scale is, and how long they take."""
    lines = []
    for study in studies:
        scales = [f"{scale}: {count_runs(study, scale)} runs, {study.times.get(scale, '?')}" for scale in SCALES]
        lines.append(f"{study.name:<20} {study.shows}\n  {study.question}\n  {' · '.join(scales)}")
    return Text("\n".join(lines))


def describe_study(study: Study, scale: Scale, only: tuple[str, ...] = ()) -> RenderableType:
    """Every arm of a study with what the paper prints, and the exact settings."""
    arms, plan = choose(study.arms(scale), only), make_plan(study, scale, Path("nowhere"), only=only)
    settings = [flatten(to_dict(arm.config)) for arm in arms]
    common = {
        name: value
        for name, value in settings[0].items()
        if name not in UNSEEN and all(other[name] == value for other in settings)
    }
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in (*arms[0].group, "arm", "published", "settings of its own"):
        table.add_column(column)
    for arm, values in zip(arms, settings, strict=True):
        own = [f"{k} {_plain(v)}" for k, v in values.items() if k not in common and k not in UNSEEN]
        if arm.tuned_by is not None:
            own.append(f"tuned by the search {arm.tuned_by}")
        if arm.backbone is not None:
            own.append(f"backbone from {arm.backbone}")
        published = "; ".join(describe_published(each, study.cost_unit) for each in arm.published)
        table.add_row(*map(Text, (*arm.group.values(), arm.label, published or "–", ", ".join(own))))
    parts: list[RenderableType] = [
        Text(f"{study.title} ({study.shows})\n{study.question}\n\nscale {scale}: {study.differences.get(scale, '')}"),
        Text(
            f"{len(arms)} arms, {study.num_seeds[scale]} seeds, {len(plan.jobs)} runs in all, "
            f"{study.times.get(scale, 'time not known') if not only else 'a part of the study'}\n"
        ),
        table,
        Text("\nin common: " + ", ".join(f"{name} {_plain(value)}" for name, value in common.items())),
    ]
    notes = {arm.note: arm for arm in arms if arm.note}
    parts += [Text(f"note on {', '.join(arm.group.values())} · {arm.label}: {note}") for note, arm in notes.items()]
    wanted = {search.name for search in plan.searches}
    for search in (search for search in study.searches(scale) if search.name in wanted):
        grid = ", ".join(f"{name} in {', '.join(map(_plain, values))}" for name, values in search.grid.items())
        points = math.prod(map(len, search.grid.values()))
        held_out = search.config.data.validation
        parts.append(
            Text(f"search {search.name}: {grid} ({points} points on {100 * held_out:g} % held-out training images)")
        )
    return Group(*parts)


def describe_published(value: Published, cost_unit: str | None) -> str:
    """A published value in a few words."""
    parts = [f"{value.mean:g}" + (f" ± {value.std:g}" if value.std is not None else "")]
    if value.cost is not None:
        parts.append(f"{value.cost:g} {cost_unit or ''}".strip())
    if value.macs is not None:
        parts.append(f"{value.macs / 1e6:,.0f} M MACs")
    if value.parameters is not None:
        parts.append(f"{value.parameters / 1e6:g} M parameters")
    quoted = "" if value.source == "paper" else f" ({value.source})"
    return ", ".join(parts) + quoted


def describe_status(folder: Path, record: StudyRecord) -> RenderableType:
    """How far every arm and search is, and why runs have failed."""
    seen: dict[str, RunStatus] = {}

    def statuses(runs: Iterable[RunRecord]) -> list[RunStatus]:
        for run in runs:
            if run.folder not in seen:
                seen[run.folder] = _status(folder / run.folder)
        return [seen[run.folder] for run in runs]

    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = list(dict.fromkeys(name for arm in record.arms for name in arm.group))
    for column in (*columns, "arm", "runs", "result"):
        table.add_column(column)
    for search in record.searches:
        states = statuses([run for point in search.points for run in point.runs])
        name = f"search {search.name}"
        table.add_row(*[""] * len(columns), Text(name), _summary(states), Text(_best(folder, search.name)))
    for arm in record.arms:
        states = statuses(arm.runs)
        mean = _mean(folder, arm.runs)
        cells = [arm.group.get(name, "") for name in columns]
        table.add_row(*map(Text, (*cells, arm.label)), _summary(states), Text(mean))
    counts = Counter(status.state for status in seen.values())
    total = ", ".join(f"{number} {state}" for state, number in counts.items())
    parts: list[RenderableType] = [
        Text(f"{record.title} ({record.shows}), scale {record.scale}: {len(seen)} runs, {total}\n"),
        table,
    ]
    for name, status in seen.items():
        if status.state in ("failed", "damaged"):
            parts.append(Text(f"\n{status.state}: {folder / name}\n  " + status.message.replace("\n", "\n  ")))
    return Group(*parts)


def _summary(states: list[RunStatus]) -> Text:
    counts = Counter(status.state for status in states)
    parts = [f"{number} {state}" for state, number in counts.items()]
    for status in states:
        if status.state in ("running", "stopped") and status.epochs:
            parts.append(f"epoch {status.epoch}/{status.epochs}")
    return Text(", ".join(parts))


def _status(folder: Path) -> RunStatus:
    """A run's state; one whose files cannot be read says so, and the others are shown all the same."""
    try:
        status = run_status(folder)
        if status.state == "finished":
            _result(folder)
        return status
    except (OSError, ValueError, KeyError, TypeError) as error:
        return RunStatus(state="damaged", message=f"{type(error).__name__}: {error}")


def _result(folder: Path) -> tuple[str, float] | None:
    """Metric and value of a run that has finished."""
    path = folder / RESULT
    if not path.exists():
        return None
    result = json.loads(path.read_text())
    return str(result["metric"]), float(result["value"])


def _mean(folder: Path, runs: Sequence[RunRecord]) -> str:
    results = []
    for run in runs:
        with suppress(OSError, ValueError, KeyError, TypeError):  # the state says so
            results.append(_result(folder / run.folder))
    known = [each for each in results if each is not None]
    if not known:
        return "–"
    # A backbone has another metric than the study.
    metric, mean = known[0][0], sum(value for _, value in known) / len(known)
    return f"{metric} {show_metric(metric, mean)}" + (f" (mean of {len(known)})" if len(known) > 1 else "")


def _best(folder: Path, search: str) -> str:
    path = best_file(folder, search)
    if not path.exists():
        return "–"
    values: Mapping[str, Any] = json.loads(path.read_text())["values"]
    return "best: " + ", ".join(f"{name.rpartition('.')[2]} {_plain(value)}" for name, value in values.items())


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
