"""From a study to its runs: which arms and seeds, in which folders and order, and what is trained only once."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spatialgrad.studies.record import (
    STUDY,
    ArmRecord,
    PointRecord,
    RunRecord,
    SearchRecord,
    StudyRecord,
    kind_of,
    read_study,
)
from spatialgrad.studies.study import Arm, Scale, Search, Study
from spatialgrad.train.config import FREE, TrainConfig, flatten, from_dict, to_dict, with_values
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
    searches: tuple[SearchRecord, ...] = field(default=())
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
    before = read_study(folder) if (folder / STUDY).exists() else None
    arms = study.arms(scale)
    chosen = _with_backbones(choose(arms, only), arms)
    arm_places, searches = _assign_places(arms, study.searches(scale))
    wanted = [name for name in searches if not only or any(arm.tuned_by == name for arm in chosen)]

    if before is not None:
        _check_same_study(before, study, scale, arms, folder)
    seeds = range(first_seed, first_seed + num_seeds)
    earlier = {arm.key: [run.seed for run in arm.runs] for arm in before.arms} if before else {}
    arm_records = tuple(
        _arm_record(arm, arm_places[arm.key], sorted({*earlier.get(arm.key, ()), *(seeds if arm in chosen else ())}))
        for arm in arms
        if arm in chosen or arm.key in earlier
    )
    planned = {arm.key for arm in arm_records}
    left_out = [arm for arm in arms if arm.shown and arm.key not in planned]
    omitted = tuple(" · ".join([*arm.group.values(), arm.label]) for arm in left_out)
    recorded = {*wanted, *(search.name for search in before.searches)} if before else set(wanted)
    search_records = {
        name: _search_record(search, points) for name, (search, points) in searches.items() if name in recorded
    }
    record = StudyRecord(
        name=study.name,
        title=study.title_at(scale),
        shows=study.shows,
        question=study.question,
        scale=scale,
        seeds=tuple(sorted({run.seed for arm in arm_records for run in arm.runs})),
        layout=study.layout,
        figures=study.figures,
        metric=study.metric_at(scale),
        cost_unit=study.cost_unit,
        published_seeds=study.published_seeds,
        differences=study.differences.get(scale, ""),
        arms=arm_records,
        searches=tuple(search_records.values()),
        note=note or (before.note if before else ""),
        only=tuple(dict.fromkeys([*(before.only if before else ()), *only])) if omitted else (),
        omitted=omitted,
        order=tuple(arm.key for arm in arms),
        command=command,
    )
    jobs: dict[Path, Job] = {}
    for name in wanted:
        search, points = searches[name]
        for job in _search_jobs(search, points, folder):
            jobs.setdefault(job.folder, job)
    # The first seed of every arm comes first, so that a whole table is there early.
    for seed in seeds:
        for arm in chosen:
            place = folder / arm_places[arm.key] / f"seed{seed}"
            backbone = None if arm.backbone is None else folder / arm_places[arm.backbone] / f"seed{seed}"
            job = Job(
                folder=place,
                config=replace(arm.config, seed=seed),
                title=" · ".join([*arm.group.values(), arm.label, f"seed {seed}"]),
                tuned_by=arm.tuned_by,
                backbone=backbone,
            )
            jobs.setdefault(place, job)
    changed = [replace(job, config=with_values(job.config, changes or {})) for job in jobs.values()]
    return Plan(
        folder=folder, record=record, jobs=tuple(changed), searches=tuple(search_records[name] for name in wanted)
    )


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
        listed = "".join(f"\n  {' · '.join([*arm.group.values(), arm.label])}" for arm in arms)
        raise ConfigError(f"no arm matches --only {' '.join(map(repr, only))}; choose from{listed}")
    return chosen


def count_runs(study: Study, scale: Scale) -> int:
    """Number of trainings of a study at a scale, with the study's number of seeds."""
    # `study list` counts every study at every scale: whole plans would take it a second.
    arm_places, searches = _assign_places(study.arms(scale), study.searches(scale))
    runs = {(place, seed) for place in arm_places.values() for seed in range(study.num_seeds[scale])}
    for search, points in searches.values():
        runs |= {(place, seed) for _, _, place in points for seed in range(search.num_seeds)}
    return len(runs)


class _Places:
    """Assigns folders to configs; equal configs share one."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, config: TrainConfig, place: str, arm: Arm | None = None) -> str:
        values = {name: value for name, value in flatten(to_dict(config)).items() if name not in (*FREE, "seed")}
        rest = (arm.tuned_by, arm.backbone) if arm else (None, None)
        return self._known.setdefault(json.dumps([values, rest], sort_keys=True), place)


Points = list[tuple[dict[str, Any], TrainConfig, str]]
"""Values, config and folder of each point of a search's grid."""


def _assign_places(
    arms: Iterable[Arm], searches: Iterable[Search]
) -> tuple[dict[str, str], dict[str, tuple[Search, Points]]]:
    """The folders of the arms by key, and the searches by name with the folders of their points."""
    places = _Places()
    arm_places = {arm.key: places.of(arm.config, f"runs/{arm.key}", arm) for arm in arms}
    return arm_places, {search.name: (search, _points(search, places)) for search in searches}


def _points(search: Search, places: _Places) -> Points:
    combinations = [dict(zip(search.grid, values, strict=True)) for values in itertools.product(*search.grid.values())]
    digits = len(str(len(combinations) - 1))
    configs = [with_values(search.config, values) for values in combinations]
    return [
        (values, config, places.of(config, f"searches/{search.name}/point-{number:0{digits}d}"))
        for number, (values, config) in enumerate(zip(combinations, configs, strict=True))
    ]


def _with_backbones(chosen: list[Arm], arms: Sequence[Arm]) -> list[Arm]:
    """The chosen arms, after the arms that train their backbones."""
    needed = {arm.backbone for arm in chosen if arm.backbone is not None}
    missing = needed - {arm.key for arm in arms}
    if missing:
        raise ConfigError(f"no arm trains the backbone {', '.join(sorted(missing))}")
    backbones = [arm for arm in arms if arm.key in needed]
    return [*backbones, *(arm for arm in chosen if arm not in backbones)]


def _search_jobs(search: Search, points: Points, folder: Path) -> Iterator[Job]:
    for seed in range(search.num_seeds):
        for values, config, place in points:
            settings = ", ".join(f"{name.rpartition('.')[2]} {value:g}" for name, value in values.items())
            title = f"{search.name}: {settings} · seed {seed}"
            yield Job(folder=folder / place / f"seed{seed}", config=replace(config, seed=seed), title=title)


def _search_record(search: Search, points: Points) -> SearchRecord:
    return SearchRecord(
        name=search.name,
        fields=tuple(search.grid),
        points=tuple(
            PointRecord(values=values, runs=_runs(place, range(search.num_seeds))) for values, _, place in points
        ),
        config=to_dict(search.config),
    )


def _arm_record(arm: Arm, place: str, seeds: Iterable[int]) -> ArmRecord:
    return ArmRecord(
        key=arm.key,
        group=dict(arm.group),
        label=arm.label,
        reference=arm.reference,
        shown=arm.shown,
        note=arm.note,
        tuned_by=arm.tuned_by,
        published=arm.published,
        config=to_dict(arm.config),
        runs=_runs(place, seeds),
        layers=arm.layers,
        backbone=arm.backbone,
        pays_for_backbone=arm.pays_for_backbone,
        published_for=arm.published_for,
    )


def _runs(place: str, seeds: Iterable[int]) -> tuple[RunRecord, ...]:
    return tuple(RunRecord(folder=f"{place}/seed{seed}", seed=seed) for seed in seeds)


def _check_same_study(before: StudyRecord, study: Study, scale: Scale, arms: Sequence[Arm], folder: Path) -> None:
    way_out = "Choose another folder with --out."
    if (before.name, before.scale) != (study.name, scale):
        held, wanted = kind_of(before.name, before.scale), kind_of(study.name, scale)
        raise OtherConfigError(f"{folder} holds {held}, not {wanted}. {way_out}")
    known = {arm.key: arm for arm in arms}
    for there in before.arms:
        if there.key not in known:
            raise OtherConfigError(f"{folder} holds the arm {there.key}, which {study.name} no longer has. {way_out}")
        changed = explain_difference(Identity(from_dict(there.config)), Identity(known[there.key].config))
        if changed:
            # The user's own studies are planned with flags, those of the paper are not.
            named = {name: flag(name) if scale == "own" else name for name in changed}
            lines = [f"  {named[name]}: {old!r} there, {new!r} now" for name, (old, new) in changed.items()]
            message = f"{folder} was planned with other settings for {there.key}:"
            raise OtherConfigError("\n".join([message, *lines, way_out]))
