"""A study on disk: `study.json` lists the runs of each arm and what the paper prints for it.

    studies/cifar-desk/
      study.json
      runs/cifar-100-sgs-ours/seed0/       a run's folder (see `spatialgrad.train`)
      searches/alpha-beta/point-03/seed0/  the same for the points of a search
      searches.log                         Optuna's journal
      report/                              what `spatialgrad report` writes

The folder is self-contained: a report needs nothing else, not even the version of the package that made it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from spatialgrad.studies.files import read_object, short
from spatialgrad.studies.study import Layout, Published, Scale
from spatialgrad.train.errors import ConfigError, DamagedFileError, OtherConfigError
from spatialgrad.train.jsonfiles import write_json

STUDY, BEST = "study.json", "best.json"
FORMAT = 1
STUDIES = Path("studies")
"""Default folder of studies; each is in `NAME-SCALE` below it."""
REPAIR = f"Delete {STUDY} and run the study again: finished runs are kept, and the file is written anew."


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run of an arm or of a search point."""

    folder: str
    """Relative to the study's folder. Arms with equal configs share a folder."""
    seed: int


@dataclass(frozen=True, kw_only=True)
class ArmRecord:
    """An arm as planned; see `Arm`."""

    key: str
    group: Mapping[str, str]
    label: str
    reference: bool
    shown: bool
    note: str
    tuned_by: str | None
    published: tuple[Published, ...]
    config: Mapping[str, Any]
    """The config as JSON, before a search or a backbone completes it."""
    runs: tuple[RunRecord, ...]
    layers: tuple[int, ...] = ()
    """Layers shown in the paper's figure; see `Arm`."""
    backbone: str | None = None
    """Key of the arm that trains the backbone, or RepOptimizer's scales."""
    pays_for_backbone: bool = False
    """Whether the time of that run counts as this arm's."""
    published_for: str = ""
    """What the paper measured, where this arm trains something else."""


@dataclass(frozen=True, kw_only=True)
class PointRecord:
    """A point of a search."""

    values: Mapping[str, Any]
    """By dotted field."""
    runs: tuple[RunRecord, ...]


@dataclass(frozen=True, kw_only=True)
class SearchRecord:
    """A search as planned; see `Search`."""

    name: str
    fields: tuple[str, ...]
    points: tuple[PointRecord, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    """The config of every point as JSON, without the point's values."""
    bounds: tuple[float, ...] = ()
    """Smallest and largest value, if points are sampled between them; empty for a grid."""


@dataclass(frozen=True, kw_only=True)
class StudyRecord:
    """The content of `study.json`."""

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
    """How this scale differs from the paper."""
    arms: tuple[ArmRecord, ...]
    searches: tuple[SearchRecord, ...] = ()
    note: str = ""
    """A remark of the user (`--note`)."""
    only: tuple[str, ...] = ()
    """The texts of `--only` that select these arms; empty if the study is complete."""
    omitted: tuple[str, ...] = ()
    """Names of the study's arms that were not selected."""
    order: tuple[str, ...] = ()
    """Keys of all of the study's arms, selected or not, in the order of its table."""
    command: str = ""
    """The command that repeats a user's own study; those of the paper are repeated by their names."""
    format: int = field(default=FORMAT)

    @property
    def heading(self) -> str:
        """What is trained, and at which scale: "VGG-16 on CIFAR (Table 1), scale desk"."""
        return self.title if self.scale == "own" else f"{self.title} ({self.shows}), scale {self.scale}"

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
        others = {arm.key: arm for arm in other.arms}
        arms = [replace(arm, runs=_united(arm.runs, others[arm.key].runs)) if arm.key in others else arm
                for arm in self.arms]  # fmt: skip
        keys = {arm.key for arm in arms}
        arms += [arm for arm in other.arms if arm.key not in keys]
        order = self.order or other.order
        arms.sort(key=lambda arm: order.index(arm.key) if arm.key in order else len(order))
        names = {search.name for search in self.searches}
        omitted = tuple(name for name in self.omitted if name in other.omitted)
        return replace(
            self,
            arms=tuple(arms),
            searches=(*self.searches, *(search for search in other.searches if search.name not in names)),
            seeds=tuple(sorted({*self.seeds, *other.seeds})),
            note=self.note or other.note,
            only=tuple(dict.fromkeys([*self.only, *other.only])) if omitted else (),
            omitted=omitted,
            order=order,
        )

    def write(self, folder: Path) -> None:
        """Write the record into the study's folder, atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / STUDY, asdict(self))


def read_study(folder: Path | str) -> StudyRecord:
    """The study in a folder.

    Raises:
        ConfigError: If there is none, or it cannot be parsed.
    """
    path = Path(folder) / STUDY
    try:
        values = read_object(path)
        if values["format"] != FORMAT:
            raise ConfigError(
                f"{path} has format {values['format']!r}, but this version reads format {FORMAT}: run the study "
                "again in another folder, with --out"
            )
        arms = tuple(
            ArmRecord(
                **{
                    **arm,
                    "group": dict(arm["group"]),
                    "config": dict(arm["config"]),
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
                    PointRecord(values=dict(point["values"]), runs=_runs(point["runs"])) for point in search["points"]
                ),
                config=dict(search.get("config", {})),
                bounds=tuple(search.get("bounds", ())),
            )
            for search in values.pop("searches")
        )
        values |= {name: tuple(values[name]) for name in ("seeds", "figures", "only", "omitted")}
        values["order"] = tuple(values.get("order", ()))
        return StudyRecord(**values, arms=arms, searches=searches)
    except FileNotFoundError as error:
        raise ConfigError(f"{folder} is not a study folder: it has no {STUDY}") from error
    except DamagedFileError as error:
        raise ConfigError(f"{folder}: {error}. {REPAIR}") from error
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be parsed ({short(error)}). {REPAIR}") from error


def kind_of(name: str, scale: str) -> str:
    """A study in a message: "the study cifar at scale desk", "a study of `spatialgrad compare`"."""
    return f"a study of `spatialgrad {name}`" if scale == "own" else f"the study {name} at scale {scale}"


def _united(runs: tuple[RunRecord, ...], others: tuple[RunRecord, ...]) -> tuple[RunRecord, ...]:
    return tuple(sorted({*runs, *others}, key=lambda run: run.seed))


def best_file(study: Path, search: str) -> Path:
    """The file in a study's folder that holds the best point of a search."""
    return study / "searches" / search / BEST


def read_best(study: Path, search: str) -> dict[str, Any] | None:
    """The values that a search has chosen, or None.

    Raises:
        DamagedFileError: If the file cannot be read.
    """
    path = best_file(study, search)
    if not path.resolve().is_relative_to(study.resolve()):
        return None
    try:
        values = read_object(path).get("values")
    except FileNotFoundError:
        return None
    if not isinstance(values, dict) or not values:
        raise DamagedFileError(f"{path.name} has no values")
    return values


def _runs(values: list[dict[str, Any]]) -> tuple[RunRecord, ...]:
    return tuple(RunRecord(**each) for each in values)


def start_field(task: str) -> str:
    """The field that names the run which a training starts from: its backbone or, for classification, its scales."""
    return "repopt.scales" if task == "classification" else "model.backbone"
