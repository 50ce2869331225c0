"""From a study to its runs: which arms and seeds, in which folders and order, and what is trained only once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spatialgrad.studies.record import STUDY, StudyRecord, kind_of, read_study
from spatialgrad.studies.study import Arm, Point, RunRecord, Scale, Search, Study
from spatialgrad.train.config import TrainConfig, with_values
from spatialgrad.train.errors import ConfigError, OtherConfigError
from spatialgrad.train.flags import flag
from spatialgrad.train.identity import Identity, explain_difference


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One run of a study: what to train, where, and what it depends on."""

    folder: Path
    config: TrainConfig
    """With its seed; a search or a backbone may still complete it."""
    title: str
    """The arm and the seed, in one line."""
    tuned_by: str | None = None
    """Name of the search whose best point completes the config."""
    backbone: Path | None = None
    """Folder of the run that trains the backbone."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The runs of one command."""

    folder: Path
    """The study's folder."""
    record: StudyRecord
    jobs: tuple[Job, ...]
    """In the order in which they should start."""
    searches: tuple[Search, ...] = field(default=())
    """The searches that these jobs need or belong to."""


def make_plan(
    study: Study,
    scale: Scale,
    folder: Path,
    *,
    num_seeds: int | None = None,
    only: Sequence[str] = (),
    changes: dict[str, Any] | None = None,
    note: str = "",
    command: str = "",
    first_seed: int = 0,
) -> Plan:
    """Plan a study, or extend the one in a folder by further arms and seeds. Nothing is written.

    Args:
        study: What to run.
        scale: paper, desk or pocket.
        folder: The study's folder; it may already hold the same study.
        num_seeds: Number of seeds; by default the study's number for the scale.
        only: Run only the arms whose group and label contain every word of one of these texts, and the searches that
            tune them. By default all arms and all searches.
        changes: Fields to change in every config, by dotted name: where a run computes, not what.
        note: A remark for the record; an empty one keeps the existing remark.
        command: The command that repeats a user's own study.
        first_seed: The first seed; the others follow it.

    Raises:
        ConfigError: If no arm matches `only`, or `num_seeds` is below 1.
        OtherConfigError: If the folder holds another study, or this one with other settings.
    """
    num_seeds = study.num_seeds[scale] if num_seeds is None else num_seeds
    if num_seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, got {num_seeds}")
    arms, seeds = study.arms(scale), range(first_seed, first_seed + num_seeds)
    chosen = _with_backbones(choose(arms, only), arms)
    places, searches = _assign_places(arms, study.searches(scale))
    wanted = [name for name in searches if not only or any(arm.tuned_by == name for arm in chosen)]
    omitted = tuple(arm.name for arm in arms if arm.shown and arm not in chosen)
    record = StudyRecord.of(
        study,
        scale,
        seeds=tuple(seeds),
        arms=tuple(replace(arm, runs=_runs(places[arm.key], seeds)) for arm in arms if arm in chosen),
        searches=tuple(searches[name] for name in wanted),
        note=note,
        only=tuple(only) if omitted else (),
        omitted=omitted,
        order=tuple(arm.key for arm in arms),
        command=command,
    )
    if (folder / STUDY).exists():
        before = read_study(folder)
        _check_same_study(before, study, scale, arms, folder)
        record = record.joined(before)
    jobs: dict[Path, Job] = {}
    for name in wanted:
        for job in _search_jobs(searches[name], folder):
            jobs.setdefault(job.folder, job)
    # The first seed of every arm comes first, so that a whole table is there early.
    for seed in seeds:
        for arm in chosen:
            job = Job(
                folder=folder / places[arm.key] / f"seed{seed}",
                config=replace(arm.config, seed=seed),
                title=f"{arm.name} · seed {seed}",
                tuned_by=arm.tuned_by,
                backbone=None if arm.backbone is None else folder / places[arm.backbone] / f"seed{seed}",
            )
            jobs.setdefault(job.folder, job)
    changed = [replace(job, config=with_values(job.config, changes or {})) for job in jobs.values()]
    return Plan(folder=folder, record=record, jobs=tuple(changed), searches=tuple(searches[name] for name in wanted))


def choose(arms: Sequence[Arm], only: Sequence[str]) -> list[Arm]:
    """The arms whose group and label contain every word of one of the texts; all arms without a text.

    A part of a word will do, unless some arm has it as a whole word: `resnet-18` is not SeResNet-18, nor `cifar-10`
    CIFAR-100. The whole name of an arm selects that arm alone: `PSPNet-18 SGS` is not "PSPNet-18 SGS in fine-tuning".

    Raises:
        ConfigError: If no arm matches; the message lists all arms.
    """
    full = {arm.key: " ".join([*arm.group.values(), arm.label]).lower().split() for arm in arms}
    names = {key: " ".join([key.lower(), *words]) for key, words in full.items()}
    whole = {word for name in names.values() for word in name.split()}

    def matches(arm: Arm, text: str) -> bool:
        words = text.lower().replace("·", " ").split()
        if words in full.values():
            return full[arm.key] == words
        name = names[arm.key]
        return all(word in (name.split() if word in whole else name) for word in words)

    chosen = [arm for arm in arms if not only or any(matches(arm, text) for text in only)]
    if not chosen:
        listed = "".join(f"\n  {arm.name}" for arm in arms)
        raise ConfigError(f"no arm matches --only {' '.join(map(repr, only))}; choose from{listed}")
    return chosen


def count_runs(study: Study, scale: Scale) -> int:
    """Number of trainings of a study at a scale, with the study's number of seeds."""
    # `study list` counts every study at every scale: whole plans would take it a second.
    places, searches = _assign_places(study.arms(scale), study.searches(scale))
    runs = {f"{place}/seed{seed}" for place in places.values() for seed in range(study.num_seeds[scale])}
    points = [point for search in searches.values() for point in search.points]
    return len(runs | {run.folder for point in points for run in point.runs})


def _assign_places(arms: Iterable[Arm], searches: Iterable[Search]) -> tuple[dict[str, str], dict[str, Search]]:
    """The folders of the arms by key, and the searches by name with their points; equal trainings share a folder."""
    known: dict[tuple[TrainConfig, str | None, str | None], str] = {}
    places = {arm.key: known.setdefault((arm.config, arm.tuned_by, arm.backbone), f"runs/{arm.key}") for arm in arms}
    planned: dict[str, Search] = {}
    for search in searches:
        grid = [dict(zip(search.grid, values, strict=True)) for values in itertools.product(*search.grid.values())]
        digits, points = len(str(len(grid) - 1)), []
        for number, values in enumerate(grid):
            own = f"searches/{search.name}/point-{number:0{digits}d}"
            place = known.setdefault((with_values(search.config, values), None, None), own)
            points.append(Point(values=values, runs=_runs(place, range(search.num_seeds))))
        planned[search.name] = replace(search, points=tuple(points))
    return places, planned


def _with_backbones(chosen: list[Arm], arms: Sequence[Arm]) -> list[Arm]:
    """The chosen arms, after the arms that train their backbones."""
    needed = {arm.backbone for arm in chosen if arm.backbone is not None}
    missing = needed - {arm.key for arm in arms}
    if missing:
        raise ConfigError(f"no arm trains the backbone {', '.join(sorted(missing))}")
    backbones = [arm for arm in arms if arm.key in needed]
    return [*backbones, *(arm for arm in chosen if arm not in backbones)]


def _search_jobs(search: Search, folder: Path) -> Iterator[Job]:
    for seed in range(search.num_seeds):
        for point in search.points:
            settings = ", ".join(f"{name.rpartition('.')[2]} {value:g}" for name, value in point.values.items())
            yield Job(
                folder=folder / point.runs[seed].folder,
                config=replace(with_values(search.config, point.values), seed=seed),
                title=f"{search.name}: {settings} · seed {seed}",
            )


def _runs(place: str, seeds: Iterable[int]) -> tuple[RunRecord, ...]:
    return tuple(RunRecord(folder=f"{place}/seed{seed}", seed=seed) for seed in sorted(seeds))


def _check_same_study(before: StudyRecord, study: Study, scale: Scale, arms: Sequence[Arm], folder: Path) -> None:
    way_out = "Choose another folder with --out."
    if (before.name, before.scale) != (study.name, scale):
        held, wanted = kind_of(before.name, before.scale), kind_of(study.name, scale)
        raise OtherConfigError(f"{folder} holds {held}, not {wanted}. {way_out}")
    known = {arm.key: arm for arm in arms}
    for there in before.arms:
        if there.key not in known:
            raise OtherConfigError(f"{folder} holds the arm {there.key}, which {study.name} no longer has. {way_out}")
        changed = explain_difference(Identity(there.config), Identity(known[there.key].config))
        if changed:
            # The user's own studies are planned with flags, those of the paper are not.
            named = {name: flag(name) if scale == "own" else name for name in changed}
            lines = [f"  {named[name]}: {old!r} there, {new!r} now" for name, (old, new) in changed.items()]
            message = f"{folder} was planned with other settings for {there.key}:"
            raise OtherConfigError("\n".join([message, *lines, way_out]))
