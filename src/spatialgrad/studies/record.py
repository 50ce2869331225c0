"""A study on disk: `study.json` lists the arms and searches with their runs, and what the paper prints.

    studies/cifar-desk/
      study.json
      runs/cifar-100-sgs-ours/seed0/       a run's folder (see `spatialgrad.train.run`)
      searches/alpha-beta/point-03/seed0/  the same for the points of a search
      searches/alpha-beta/best.json        what the search has chosen
      archived.jsonl                       archived runs that this study uses instead of training them again
      report/                              what `spatialgrad report` writes

The folder is self-contained: a report needs nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import msgspec

from spatialgrad.studies.study import Arm, FigureName, Layout, Point, RunRecord, Scale, Search, Study
from spatialgrad.train.config import TrainConfig, with_values
from spatialgrad.train.errors import ConfigError, DamagedFileError, OtherConfigError
from spatialgrad.train.jsonfiles import read_json, write_json

STUDY, BEST = "study.json", "best.json"
FORMAT = 2
STUDIES = Path("studies")
"""Default folder of studies; each is in `NAME-SCALE` below it."""
REPAIR = f"Delete {STUDY} and run the study again: finished runs stay, and the file is written anew."


@dataclass(frozen=True, kw_only=True)
class StudyRecord:
    """A study as planned; see `Study` and `Arm`."""

    name: str
    title: str
    shows: str
    question: str
    scale: Scale
    seeds: tuple[int, ...]
    layout: Layout
    figures: tuple[FigureName, ...]
    metric: str
    cost_unit: str | None
    published_seeds: int | None
    differences: str
    arms: tuple[Arm, ...] = ()
    searches: tuple[Search, ...] = ()
    note: str = ""
    """A remark of the user."""
    only: tuple[str, ...] = ()
    """How the arms were selected; empty if all were planned."""
    omitted: tuple[str, ...] = ()
    """The arms that were not selected."""
    order: tuple[str, ...] = ()
    """Keys of all of the study's arms, selected or not, in the order of its table."""
    command: str = ""
    """The command that repeats a user's own study; those of the paper are repeated by their names."""
    format: int = FORMAT

    @classmethod
    def of(cls, study: Study, scale: Scale, **planned: Any) -> StudyRecord:
        """The record of a study at a scale.

        Args:
            study: What is planned.
            scale: At which scale.
            planned: The fields of the record that the study itself does not determine.
        """
        return cls(
            name=study.name,
            title=study.title_at(scale),
            shows=study.shows,
            question=study.question,
            scale=scale,
            layout=study.layout,
            figures=study.figures,
            metric=study.metric_at(scale),
            cost_unit=study.cost_unit,
            published_seeds=study.published_seeds,
            differences=study.differences.get(scale, ""),
            **planned,
        )

    @property
    def heading(self) -> str:
        """What is trained, and at which scale: "VGG-16 on CIFAR (Table 1), scale desk"."""
        return self.title if self.scale == "own" else f"{self.title} ({self.shows}), scale {self.scale}"

    @property
    def runs(self) -> dict[str, RunRecord]:
        """All runs, each once, by folder."""
        owners: list[Arm | Point] = [*self.arms, *(point for search in self.searches for point in search.points)]
        return {run.folder: run for owner in owners for run in owner.runs}

    def joined(self, other: StudyRecord) -> StudyRecord:
        """This record, extended by the arms, seeds and searches that another record of the same study has.

        Raises:
            OtherConfigError: If the other record is that of another study or scale.
        """
        if (other.name, other.scale) != (self.name, self.scale):
            raise OtherConfigError(
                f"the folder holds {kind_of(other.name, other.scale)}, not {kind_of(self.name, self.scale)}. "
                "Choose another folder with --out."
            )
        theirs = {arm.key: arm for arm in other.arms}
        arms = theirs | {arm.key: arm for arm in self.arms}
        for key in theirs:
            runs = {run.seed: run for run in (*theirs[key].runs, *arms[key].runs)}
            arms[key] = replace(arms[key], runs=tuple(runs[seed] for seed in sorted(runs)))
        order = self.order or other.order
        omitted = tuple(name for name in self.omitted if name in other.omitted)
        searches = {search.name: search for search in (*other.searches, *self.searches)}
        return replace(
            self,
            arms=tuple(sorted(arms.values(), key=lambda arm: order.index(arm.key) if arm.key in order else len(order))),
            searches=tuple(searches.values()),
            seeds=tuple(sorted({*self.seeds, *other.seeds})),
            note=self.note or other.note,
            only=tuple(dict.fromkeys([*other.only, *self.only])) if omitted else (),
            omitted=omitted,
            order=order,
        )

    def planned_configs(self, chosen: Mapping[str, Mapping[str, Any]]) -> dict[str, TrainConfig | None]:
        """The complete config of every run, by folder; None while the search that it needs has not chosen.

        Args:
            chosen: What each search has chosen; see `read_choices`.
        """
        found: dict[str, TrainConfig | None] = {}
        for search in self.searches:
            for point in search.points:
                config = with_values(search.config, point.values)
                found |= {run.folder: replace(config, seed=run.seed) for run in point.runs}
        places = {(arm.key, run.seed): (run.folder, arm.config) for arm in self.arms for run in arm.runs}
        for arm in self.arms:
            values = dict(chosen.get(arm.tuned_by, {})) if arm.tuned_by is not None else {}
            for run in arm.runs:
                if arm.tuned_by is not None and not values:
                    found.setdefault(run.folder, None)
                    continue
                if (start := places.get((arm.backbone or "", run.seed))) is not None:
                    folder, started = start
                    values[start_field(arm.config, started)] = folder
                config = with_values(arm.config, values) if values else arm.config
                found.setdefault(run.folder, replace(config, seed=run.seed))
        return found

    def write(self, folder: Path) -> None:
        """Write the record into the study's folder, atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / STUDY, self)


def read_study(folder: Path | str) -> StudyRecord:
    """The study in a folder.

    Raises:
        ConfigError: If there is none, or it cannot be parsed.
    """
    path = Path(folder) / STUDY
    try:
        return to_record(read_json(path), str(path))
    except FileNotFoundError as error:
        raise ConfigError(f"{folder} is not a study folder: it has no {STUDY}") from error
    except DamagedFileError as error:
        raise ConfigError(f"{error}. {REPAIR}") from error


def to_record(values: Mapping[str, Any], source: str) -> StudyRecord:
    """The record that JSON values describe.

    Args:
        values: Of `study.json`.
        source: Where they come from, for the error.

    Raises:
        ConfigError: If the format is another one.
        DamagedFileError: If a value is missing or invalid.
    """
    if values.get("format", FORMAT) != FORMAT:
        raise ConfigError(
            f"{source} has format {values['format']!r}, but this version reads format {FORMAT}: run the study again in "
            "another folder, with --out"
        )
    try:
        record = msgspec.convert(values, StudyRecord, dec_hook=lambda kind, value: Path(value))
    except (msgspec.ValidationError, ConfigError, TypeError) as error:
        raise DamagedFileError(f"{source} is damaged ({error})") from error
    for folder in record.runs:
        if PurePath(folder).is_absolute() or ".." in PurePath(folder).parts:
            raise DamagedFileError(f"{source} is damaged (the run {folder} is outside the study's folder)")
    for search in record.searches:
        for point in search.points:
            if set(point.values) != set(search.grid):
                names, wanted = ", ".join(point.values) or "nothing", ", ".join(search.grid)
                what = f"a point of the search {search.name} sets {names}, not {wanted}"
                raise DamagedFileError(f"{source} is damaged ({what})")
    return record


def kind_of(name: str, scale: str) -> str:
    """A study in a message: "the study cifar at scale desk", "a study of `spatialgrad compare`"."""
    return f"a study of `spatialgrad {name}`" if scale == "own" else f"the study {name} at scale {scale}"


def best_file(study: Path, search: str) -> Path:
    """The file in a study's folder that holds the best point of a search."""
    return study / "searches" / search / BEST


def read_best(study: Path, search: str) -> dict[str, Any] | None:
    """The values that a search has chosen, or None.

    Raises:
        DamagedFileError: If the file cannot be read.
    """
    path = best_file(study, search)
    try:
        values = read_json(path).get("values")
    except FileNotFoundError:
        return None
    if not isinstance(values, dict) or not values:
        raise DamagedFileError(f"{path} is damaged (no values); remove it, and the search chooses again")
    return values


def read_choices(study: Path, record: StudyRecord) -> dict[str, dict[str, Any]]:
    """What the searches of a study have chosen, by name.

    Raises:
        DamagedFileError: If a file cannot be read.
    """
    found = {search.name: read_best(study, search.name) for search in record.searches}
    return {name: values for name, values in found.items() if values is not None}


def start_field(config: TrainConfig, start: TrainConfig) -> str:
    """The field that names the run which a training starts from: its scales, its scalings, or its weights."""
    if start.method.name == "repopt-search":
        return "repopt.scales"
    return "scaling.fixed" if config.method.name == "sgs-static" else "model.backbone"
