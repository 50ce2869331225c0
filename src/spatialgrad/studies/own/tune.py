"""The choice of k for a user's own network and data set: what is searched, and which values are trained again.

A search sees each k once, and the best of many single results is better than it will be the next time. The best few are
therefore trained again with further seeds, beside the k of the config, and only these runs are compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from spatialgrad.data.registry import find_source
from spatialgrad.studies.own.compare import described, measured_on
from spatialgrad.studies.record import SearchRecord, StudyRecord
from spatialgrad.studies.study import Arm, FigureName, Study
from spatialgrad.train.config import TrainConfig, from_dict, to_dict
from spatialgrad.train.errors import ConfigError, OtherConfigError
from spatialgrad.train.flags import flag
from spatialgrad.train.identity import Identity, explain_difference

TUNE, SEARCH, FIELD = "tune", "k", "scaling.k"
FIRST_SEED = 1
"""Seed of the first run that repeats a k; trials have seed 0."""
FINALISTS = 3
"""Number of searched values that are trained again."""
APART = 1.25
"""Smallest factor between two of them: closer ones give nearly the same scalings."""
FIGURES: tuple[FigureName, ...] = ("gains", "learning-curves", "overhead", "scalings")


def check_bounds(bounds: tuple[float, float]) -> None:
    """Raise unless k can be searched between two numbers.

    Raises:
        ConfigError: If they are not positive, or not in ascending order.
    """
    low, high = bounds
    if not (0 < low < high < math.inf):
        raise ConfigError(f"--k must be two positive numbers, the smaller one first, got {low:g} {high:g}")


def check_config(config: TrainConfig) -> None:
    """Raise unless a training can be used to choose k.

    Raises:
        ConfigError: If it would be judged by the test images, or its scalings would never be measured.
    """
    if not config.data.validation:
        raise ConfigError("--data.validation must be above 0: k is chosen on held-out training images, got 0.0")
    if config.scaling.warmup >= config.budget.epochs:
        raise ConfigError(
            f"--epochs must be above --scaling.warmup {config.scaling.warmup}, got {config.budget.epochs}: scalings "
            "would never be measured"
        )


def with_k(config: TrainConfig, k: float) -> TrainConfig:
    """A training with another k."""
    return replace(config, scaling=replace(config.scaling, k=k))


def rounded(k: float) -> float:
    """A searched k with three digits; more make no difference."""
    return float(f"{k:.3g}")


def finalists(values: Mapping[float, float], reference: float, number: int = FINALISTS) -> list[float]:
    """The values of k that are trained again beside the reference, the best first.

    Args:
        values: The metric of each k that was searched to the end.
        reference: A k that is trained again in any case.
        number: Largest number of values.
    """
    ranked = sorted((k for k in values if k != reference), key=lambda k: (-values[k], k))
    chosen: list[float] = []
    for k in ranked:
        if len(chosen) < number and all(_factor(k, other) >= APART for other in (*chosen, reference)):
            chosen.append(k)
    # In a narrow range, all values may be close to the reference.
    return chosen or ranked[:1]


def tune_study(config: TrainConfig, ks: Sequence[float]) -> Study:
    """The study that trains values of k again.

    Args:
        config: The training; its own k is the reference.
        ks: The other values.
    """
    reference = config.scaling.k
    every = sorted({reference, *ks})
    arms = tuple(Arm(group={}, label=label(k), config=with_k(config, k), reference=k == reference) for k in every)
    return Study(
        name=TUNE,
        title=f"k for {described(config)}",
        shows="A search of your own",
        question="Which k is best here, and does it matter?",
        arms=lambda scale: arms,
        figures=FIGURES,
        metric=find_source(config.data.name).metric,
        num_seeds={"own": 3},
        differences={
            "own": f"{measured_on(config)} The table compares runs with further seeds, which the search did not see."
        },
    )


def label(k: float) -> str:
    """The name of a k in tables."""
    return f"k = {k:.12g}"


def first_record(config: TrainConfig, bounds: tuple[float, float], command: str) -> StudyRecord:
    """The record of a search that has not begun."""
    study = tune_study(config, ())
    return StudyRecord(
        name=TUNE,
        title=study.title_at("own"),
        shows=study.shows,
        question=study.question,
        scale="own",
        seeds=(),
        layout=study.layout,
        figures=study.figures,
        metric=study.metric_at("own"),
        cost_unit=None,
        published_seeds=None,
        differences=study.differences["own"],
        arms=(),
        searches=(SearchRecord(name=SEARCH, fields=(FIELD,), points=(), config=to_dict(config), bounds=bounds),),
        command=command,
    )


def search_in(record: StudyRecord) -> SearchRecord:
    """The search of a record.

    Raises:
        OtherConfigError: If it has none.
    """
    for search in record.searches:
        if record.name == TUNE and search.name == SEARCH:
            return search
    raise OtherConfigError("the folder holds another study. Choose another folder with --out.")


def ks_of(record: StudyRecord) -> list[float]:
    """The values of k that a record has trained again, the reference included."""
    return [from_dict(arm.config).scaling.k for arm in record.arms]


def check_same_search(record: StudyRecord, config: TrainConfig, bounds: tuple[float, float]) -> None:
    """Raise unless a folder's search is the one that is asked for.

    Raises:
        OtherConfigError: If it is another one; the message lists the differences.
    """
    search = search_in(record)
    differing = explain_difference(Identity(from_dict(search.config)), Identity(config))
    changed = {flag(name): pair for name, pair in differing.items()}
    if tuple(search.bounds) != bounds:
        changed["--k"] = (" ".join(f"{end:g}" for end in search.bounds), " ".join(f"{end:g}" for end in bounds))
    if changed:
        lines = [f"  {name}: {there!r} there, {now!r} now" for name, (there, now) in changed.items()]
        message = "the folder holds a search with other settings:"
        raise OtherConfigError("\n".join([message, *lines, "Choose another folder with --out."]))


def _factor(one: float, other: float) -> float:
    return max(one, other) / min(one, other)
