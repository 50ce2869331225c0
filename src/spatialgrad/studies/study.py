"""What a study is: arms that are trained once per seed, in groups that are compared, beside the paper's values.

A study is data: `plan` says which runs it needs, `record` is what is on disk of it, `runner` trains it, and
`spatialgrad.report` shows it. Arms and searches are written to disk as they are, with their runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from spatialgrad.train.config import TrainConfig

PaperScale = Literal["paper", "desk", "pocket"]
SCALES: tuple[PaperScale, ...] = get_args(PaperScale)
"""paper: the paper's networks, data and training. desk: evidence without a GPU. pocket: the whole pipeline in minutes,
no claims."""
Scale = Literal["paper", "desk", "pocket", "own"]
"""Those of the paper, and that of a user's own study, which has no other."""

Layout = Literal["rows", "columns"]
"""rows: a table with one row per arm. columns: one row per group, with its arms side by side."""

FigureName = Literal[
    "cost",
    "k-curve",
    "scalings",
    "dependence",
    "centre-share",
    "kernel-magnitudes",
    "kernel-similarity",
    "distances",
    "learning-curves",
    "overhead",
    "examples",
    "gains",
    "gain-map",
    "int8",
]
"""cost: the metric against training cost. k-curve: against k, normalised. scalings: G over depth and time. dependence:
S over distance and depth. centre-share: share of the centre in G, over depth and time. kernel-magnitudes: mean |W| with
and without scaling. kernel-similarity: correlation of G and |W|. distances: between a branched and a scaled network
(method lemma). gains: differences from the references with their intervals. gain-map: these over two numbers, such as
images and steps. int8: the change by quantization, and the range of weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """What the paper prints about an arm."""

    mean: float
    """The headline metric in per cent, as printed."""
    std: float | None = None
    """The deviation printed after ±."""
    cost: float | None = None
    """Training cost in the study's `cost_unit`."""
    macs: float | None = None
    """Multiply-accumulates of the network during training."""
    parameters: float | None = None
    """Number of parameters during training."""
    other: Mapping[str, float] = field(default_factory=dict)
    """Further metrics in per cent, by their names in a result."""
    source: str = "paper"
    """Who measured it: this paper, or the one that it quotes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """One run of an arm or of a search's point."""

    folder: str
    """Relative to the study's folder. Arms with equal configs share a folder."""
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One way to train one network on one data set: a cell of the table, trained once per seed."""

    group: Mapping[str, str]
    """What the arms that are compared have in common, by column: {"Dataset": "CIFAR-10"}."""
    label: str
    """What distinguishes this arm, as the paper calls it."""
    config: TrainConfig
    """The training; the seed and the folder are set for each run."""
    reference: bool = False
    """Whether the other arms of the group are compared with this one."""
    published: tuple[Published, ...] = ()
    """What the paper prints: its own value first, then quoted ones."""
    published_for: str = ""
    """What the paper measured, where this arm trains something else: "VGG-16 on CIFAR-100"."""
    tuned_by: str | None = None
    """Name of the search whose best point replaces fields of the config."""
    backbone: str | None = None
    """Key of the arm that trains the backbone, RepOptimizer's scales, or the scalings; the run with the same seed is
    used."""
    pays_for_backbone: bool = False
    """Whether the time of that run counts as this arm's, because no other network will use it."""
    shown: bool = True
    """Whether the arm appears in the table; an arm that only trains a backbone does not."""
    layers: tuple[int, ...] = ()
    """Layers shown in the paper's figure, counted from 0 among the scaled convolutions; -1 is the last one."""
    note: str = ""
    """What a reader should know about this arm."""
    runs: tuple[RunRecord, ...] = ()
    """The planned runs; none before the study is planned."""

    @property
    def name(self) -> str:
        """Group and label: "CIFAR-10 · SGS (ours)"."""
        return " · ".join([*self.group.values(), self.label])

    @property
    def key(self) -> str:
        """Name of the arm within the study, usable as a folder name."""
        return slug("-".join([*self.group.values(), self.label]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A point of a search."""

    values: Mapping[str, Any]
    """By dotted field."""
    runs: tuple[RunRecord, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """A grid of settings, each trained and evaluated on held-out training images.

    The best one completes the arms that name the search. A search that no arm names is a result of its own.
    """

    name: str
    config: TrainConfig
    """The training of each point; `data.validation` must hold images out."""
    grid: Mapping[str, tuple[Any, ...]]
    """Values to try, by dotted field: {"scaling.alpha": (0.8, 1.0)}; for `spatialgrad tune`, the bounds."""
    num_seeds: int = 1
    """Number of trainings per point; their mean counts."""
    points: tuple[Point, ...] = ()
    """The planned points; none before the study is planned."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The dotted fields that are searched."""
        return tuple(self.grid)


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """A table or a figure of the paper that can be run, or a study of a user's own."""

    name: str
    title: str | Mapping[Scale, str]
    """What is trained, by scale where it differs."""
    shows: str
    """Where it is in the paper: "Table 1"."""
    question: str
    """What it answers, in one sentence."""
    arms: Callable[[Scale], tuple[Arm, ...]]
    searches: Callable[[Scale], tuple[Search, ...]] = lambda scale: ()
    layout: Layout = "rows"
    figures: tuple[FigureName, ...] = ("learning-curves", "overhead")
    """Figures of the report, in this order."""
    metric: str | Mapping[Scale, str] = "accuracy"
    """The headline metric, by scale where it differs."""
    cost_unit: str | None = None
    """Unit of the published costs: "GPU hours"."""
    published_seeds: int | None = None
    """Number of runs that the paper averages."""
    num_seeds: Mapping[Scale, int] = field(default_factory=lambda: {"paper": 3, "desk": 3, "pocket": 2})
    """Default number of seeds."""
    differences: Mapping[Scale, str] = field(default_factory=dict)
    """How each scale differs from the paper, and what was chosen where the paper is silent; every page repeats it."""
    times: Mapping[Scale, str] = field(default_factory=dict)
    """Rough duration of each scale, and on what hardware."""

    def title_at(self, scale: Scale) -> str:
        """What is trained at a scale."""
        return self.title if isinstance(self.title, str) else self.title[scale]

    def metric_at(self, scale: Scale) -> str:
        """The headline metric at a scale."""
        return self.metric if isinstance(self.metric, str) else self.metric[scale]


def slug(text: str) -> str:
    """A text as a file name: lower case, with hyphens for everything but letters, digits and dots."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower().replace("*", "-star").replace("α", "alpha")).strip("-.")
