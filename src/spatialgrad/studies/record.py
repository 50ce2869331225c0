"""A study on disk: `study.json` says which runs belong to which arm, and holds what the paper prints for each.

    studies/cifar-desk/
      study.json
      runs/cifar-100-sgs-ours/seed0/       a run's folder (see `spatialgrad.train`)
      searches/alpha-beta/point-03/seed0/  the same for the points of a search
      searches.log                         Optuna's journal
      report/                              what `spatialgrad report` writes

The file is complete: a report needs nothing but this folder, also when the package has moved on since.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from spatialgrad.studies.study import Layout, Published, Scale
from spatialgrad.train.errors import ConfigError
from spatialgrad.train.runs.folder import write_json

STUDY, BEST = "study.json", "best.json"
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run of an arm, or of a point of a search."""

    folder: str
    """Relative to the study's folder. Arms with the same config share a folder."""
    seed: int


@dataclass(frozen=True, kw_only=True)
class ArmRecord:
    """An arm as it was planned; see `Arm`."""

    key: str
    group: Mapping[str, str]
    label: str
    reference: bool
    shown: bool
    note: str
    tuned_by: str | None
    published: tuple[Published, ...]
    config: Mapping[str, Any]
    """The config as JSON, before a search or a backbone has completed it."""
    runs: tuple[RunRecord, ...]
    layers: tuple[int, ...] = ()
    """Layers that the paper's figure shows; see `Arm`."""
    backbone: str | None = None
    """Key of the arm that trains the backbone."""


@dataclass(frozen=True, kw_only=True)
class PointRecord:
    """A point of a search."""

    values: Mapping[str, Any]
    """By dotted field."""
    runs: tuple[RunRecord, ...]


@dataclass(frozen=True, kw_only=True)
class SearchRecord:
    """A search as it was planned; see `Search`."""

    name: str
    fields: tuple[str, ...]
    points: tuple[PointRecord, ...]


@dataclass(frozen=True, kw_only=True)
class StudyRecord:
    """What `study.json` holds."""

    name: str
    title: str
    shows: str
    question: str
    scale: Scale
    seeds: tuple[int, ...]
    layout: Layout
    figures: tuple[str, ...]
    metric: str
    cost_unit: str | None
    published_seeds: int | None
    differences: str
    """In what this scale differs from the paper."""
    arms: tuple[ArmRecord, ...]
    searches: tuple[SearchRecord, ...] = ()
    note: str = ""
    """A remark of whoever ran it."""
    format: int = field(default=FORMAT)

    def joined(self, other: StudyRecord) -> StudyRecord:
        """This record, and what another one of the same study has beside it: further arms, seeds and searches."""
        if (other.name, other.scale) != (self.name, self.scale):
            return self
        others = {arm.key: arm for arm in other.arms}
        arms = [replace(arm, runs=_united(arm.runs, others[arm.key].runs)) if arm.key in others else arm
                for arm in self.arms]  # fmt: skip
        keys = {arm.key for arm in arms}
        arms += [arm for arm in other.arms if arm.key not in keys]
        names = {search.name for search in self.searches}
        return replace(
            self,
            arms=tuple(arms),
            searches=(*self.searches, *(search for search in other.searches if search.name not in names)),
            seeds=tuple(sorted({*self.seeds, *other.seeds})),
            note=self.note or other.note,
        )

    def write(self, folder: Path) -> None:
        """Write it into the study's folder, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / STUDY, asdict(self))


def read_study(folder: Path | str) -> StudyRecord:
    """The study in a folder.

    Raises:
        ConfigError: If there is none, or it cannot be understood.
    """
    path = Path(folder) / STUDY
    try:
        values: dict[str, Any] = json.loads(path.read_text())
        if values["format"] != FORMAT:
            raise ConfigError(f"{path} has format {values['format']!r}, this version reads {FORMAT}: run it again")
        arms = tuple(
            ArmRecord(
                **{
                    **arm,
                    "published": tuple(Published(**each) for each in arm["published"]),
                    "runs": _runs(arm["runs"]),
                    "layers": tuple(arm.get("layers", ())),
                }
            )
            for arm in values.pop("arms")
        )
        searches = tuple(
            SearchRecord(
                name=search["name"],
                fields=tuple(search["fields"]),
                points=tuple(
                    PointRecord(values=point["values"], runs=_runs(point["runs"])) for point in search["points"]
                ),
            )
            for search in values.pop("searches")
        )
        values |= {name: tuple(values[name]) for name in ("seeds", "figures")}
        return StudyRecord(**values, arms=arms, searches=searches)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} is not a study's folder: {path} cannot be read ({error})") from error
    except (TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be understood: {type(error).__name__} {error}") from error


def _united(runs: tuple[RunRecord, ...], others: tuple[RunRecord, ...]) -> tuple[RunRecord, ...]:
    return tuple(sorted({*runs, *others}, key=lambda run: run.seed))


def best_file(study: Path, search: str) -> Path:
    """Where the point that a search has chosen is written, in a study's folder."""
    return study / "searches" / search / BEST


def _runs(values: list[dict[str, Any]]) -> tuple[RunRecord, ...]:
    return tuple(RunRecord(**each) for each in values)
