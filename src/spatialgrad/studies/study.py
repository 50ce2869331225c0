"""What a study is: arms that are trained once per seed, in groups that are compared, beside the paper's values.

A study is data. What runs it is in `runner`, what became of it in `record` and `status`, and `spatialgrad.report`
shows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from spatialgrad.train.config.groups import TrainConfig

Scale = Literal["paper", "desk", "pocket"]
SCALES: tuple[Scale, ...] = get_args(Scale)
"""paper: the published settings. desk: evidence without a GPU. pocket: the whole pipeline in minutes, no claims."""

Layout = Literal["rows", "columns"]
"""rows: a table with one row per arm. columns: one row per group, and its arms side by side."""

Figure = Literal[
    "cost", "k-curve", "scalings", "kernel-magnitudes", "distances", "learning-curves", "overhead", "examples"
]
"""cost: the metric against training cost. k-curve: against k, normalised. scalings: G over depth and time.
kernel-magnitudes: mean |W| with and without. distances: between a branched and a scaled network (method lemma)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """What the paper prints about an arm."""

    mean: float
    """The headline metric in per cent, as printed."""
    std: float | None = None
    """What is printed behind ±."""
    cost: float | None = None
    """Training cost in the study's `cost_unit`."""
    macs: float | None = None
    """Multiply-accumulates of the network as it is trained."""
    parameters: float | None = None
    """Of the network as it is trained."""
    other: Mapping[str, float] = field(default_factory=dict)
    """Further metrics in per cent, by their names in a result."""
    source: str = "paper"
    """Who measured it: this paper, or the one that it quotes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One way to train one network on one data set: a cell of the table, trained once per seed."""

    group: Mapping[str, str]
    """What the arms that are compared with each other have in common, by column: {"Dataset": "CIFAR-10"}."""
    label: str
    """What is special about this arm, as the paper calls it."""
    config: TrainConfig
    """The training; its seed and folder are set for each run."""
    reference: bool = False
    """Whether the other arms of the group are compared with this one."""
    published: tuple[Published, ...] = ()
    """What the paper prints: its own value first, then those that it quotes."""
    tuned_by: str | None = None
    """Name of the search whose best point replaces fields of the config."""
    backbone: str | None = None
    """Key of the arm that trains the backbone; the run of the same seed is taken."""
    shown: bool = True
    """Whether the arm is part of the table; an arm that only trains a backbone is not."""
    layers: tuple[int, ...] = ()
    """Layers that the paper's figure shows, counted from 0 among the scaled convolutions; -1 is the last one."""
    note: str = ""
    """What a reader should know about this arm."""

    @property
    def key(self) -> str:
        """Its name within the study, fit for a folder."""
        return slug("-".join([*self.group.values(), self.label]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """A grid of settings, each trained and tested on held-out training images; the best one tunes an arm."""

    name: str
    config: TrainConfig
    """The training of every point; `data.validation` must hold images out."""
    grid: Mapping[str, tuple[Any, ...]]
    """Values to try, by dotted field: {"scaling.alpha": (0.8, 1.0)}."""
    num_seeds: int = 1
    """Trainings per point; their mean counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """A table or a figure of the paper as something that can be run."""

    name: str
    title: str
    shows: str
    """Where it is in the paper: "Table 1"."""
    question: str
    """What it answers, in a sentence."""
    arms: Callable[[Scale], tuple[Arm, ...]]
    searches: Callable[[Scale], tuple[Search, ...]] = lambda scale: ()
    layout: Layout = "rows"
    figures: tuple[Figure, ...] = ("learning-curves", "overhead")
    """Figures of the report, in this order; `spatialgrad.report` knows their names."""
    metric: str | Mapping[Scale, str] = "accuracy"
    """The headline metric of its results, by scale where they differ."""
    cost_unit: str | None = None
    """Unit of the published costs: "GPU hours"."""
    published_seeds: int | None = None
    """How many runs the paper averages."""
    num_seeds: Mapping[Scale, int] = field(default_factory=lambda: {"paper": 3, "desk": 3, "pocket": 2})
    """Seeds when none are asked for."""
    differences: Mapping[Scale, str] = field(default_factory=dict)
    """In what a scale differs from the paper, in a sentence or two for every page that shows it."""
    times: Mapping[Scale, str] = field(default_factory=dict)
    """How long a scale takes, roughly, and on what."""

    def metric_at(self, scale: Scale) -> str:
        """The headline metric at a scale."""
        return self.metric if isinstance(self.metric, str) else self.metric[scale]


def slug(text: str) -> str:
    """A text as a name for files: lower case, and everything but letters, digits and dots is a hyphen."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower().replace("*", "-star").replace("α", "alpha")).strip("-.")
