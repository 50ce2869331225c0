"""Scaling beside its rivals on the same network and images: once for equal epochs, once for equal training time."""

from __future__ import annotations

from dataclasses import replace

from spatialgrad.studies.own.datasets import OWN
from spatialgrad.studies.paper.scales import DESK_VGG, FASHION, POCKET
from spatialgrad.studies.study import Arm, Scale, Study
from spatialgrad.train import recipes
from spatialgrad.train.config import ModelConfig, TrainConfig

METHODS = {
    "Plain": "baseline",
    "SGS": "sgs",
    "RepOpt": "repopt",
    "SGS from RepOpt's weights": "sgs",
    "ACB": "acb",
    "RepVGG": "repvgg",
    "DBB": "dbb",
    "DyRep": "dyrep",
}
"""The arms of each group, and the method of each."""
SEARCH = "RepOpt's search"
AFTER_SEARCH = ("RepOpt", "SGS from RepOpt's weights")
"""The arms that start from the scales of a search, whose time counts as theirs."""
COST = {
    "baseline": 1.0,
    "sgs": 1.0,
    "repopt": 1.0,
    "repopt-search": 1.2,
    "acb": 1.8,
    "repvgg": 1.25,
    "dbb": 3.2,
    "dyrep": 2.7,
}
"""Time of a training step in units of a plain one, rounded, as `benchmarks/bench_reparam.py` measures it."""
EPOCHS, TIME = "equal epochs", "equal training time"


def arms(scale: Scale) -> tuple[Arm, ...]:
    """Both groups of all methods, and the searches that they start from."""
    found = [
        Arm(
            group={"Compared at": group},
            label=SEARCH,
            config=_with_epochs(_config(scale, "repopt-search"), _search_epochs(scale)),
            shown=False,
        )
        for group in (EPOCHS, TIME)
    ]
    search_key = {group: arm.key for group, arm in zip((EPOCHS, TIME), found, strict=True)}
    for group in (EPOCHS, TIME):
        for label, method in METHODS.items():
            config, searched = _config(scale, method), label in AFTER_SEARCH
            epochs = config.budget.epochs if group == EPOCHS else _epochs_for_time(scale, config, searched=searched)
            found.append(
                Arm(
                    group={"Compared at": group},
                    label=label,
                    config=_with_epochs(config, epochs),
                    reference=label == "Plain",
                    backbone=search_key[group] if searched else None,
                    pays_for_backbone=searched,
                    note=_note(config, epochs, searched=searched, scale=scale) if group == TIME else "",
                )
            )
    return tuple(found)


def _config(scale: Scale, method: str) -> TrainConfig:
    if scale == "paper":
        return recipes.cifar_appendix("vgg16-slim", method)
    if scale == "desk":
        return recipes.desk(method)
    config = recipes.pocket(method)
    return replace(config, model=ModelConfig(name="vgg11-linear", width=0.125))


def _with_epochs(config: TrainConfig, epochs: int) -> TrainConfig:
    """A shorter training in which scalings and branches change as often, in proportion."""
    share = epochs / config.budget.epochs
    until = config.dyrep.until
    return replace(
        config,
        scaling=replace(config.scaling, every=max(1, round(config.scaling.every * share))),
        dyrep=replace(
            config.dyrep,
            interval=max(1, round(config.dyrep.interval * share)),
            until=None if until is None else max(1, round(until * share)),
        ),
        budget=replace(config.budget, epochs=epochs),
    )


def _search_epochs(scale: Scale) -> int:
    return max(2, _config(scale, "repopt-search").budget.epochs // 3)


def _epochs_for_time(scale: Scale, config: TrainConfig, *, searched: bool) -> int:
    """The epochs that fit into the time of plain training."""
    left = config.budget.epochs - (COST["repopt-search"] * _search_epochs(scale) if searched else 0)
    return max(2, round(left / COST[config.method.name]))


def _note(config: TrainConfig, epochs: int, *, searched: bool, scale: Scale) -> str:
    search = f" after a search of {_search_epochs(scale)}" if searched else ""
    return f"{epochs} epochs{search}: a step takes {COST[config.method.name]:g} times as long as a plain one."


RIVALS = Study(
    name="rivals",
    title={
        "paper": "VGG-16 on CIFAR-100, all methods",
        "desk": "VGG-11 on CIFAR-100, all methods",
        "pocket": f"VGG-11 on {FASHION}, all methods",
    },
    shows=OWN,
    question="Which method gives the best network for the same number of epochs, and which for the same time?",
    arms=arms,
    figures=("cost", "gains", "learning-curves", "overhead"),
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": "The slim VGG-16 of Table 1 with the appendix' training. RepOpt's search takes a third of the epochs, "
        "on the same images; its authors search with a recipe of their own. At equal training time, epochs are divided "
        "by the rounded cost of a step, and the time of a search counts.",
        "desk": f"{DESK_VGG} RepOpt's search takes 10 epochs on the same images. At equal training time, epochs are "
        "divided by the rounded cost of a step, and the time of a search counts; schedules shrink in proportion.",
        "pocket": POCKET,
    },
    times={"paper": "about 60 GPU hours", "desk": "9 hours on 2 cores", "pocket": "6 minutes on 2 cores"},
)
