"""Scaling beside its rivals: the same network and images for the same number of epochs."""

from __future__ import annotations

from dataclasses import replace

from spatialgrad.studies.own.datasets import OWN
from spatialgrad.studies.paper.scales import DESK_VGG, FASHION, POCKET
from spatialgrad.studies.study import Arm, Scale, Study
from spatialgrad.train import recipes
from spatialgrad.train.config import ModelConfig, TrainConfig

ARMS = {
    "Plain": "baseline",
    "SGS": "sgs",
    "RepOpt": "repopt",
    "SGS from RepOpt's weights": "sgs",
    "ACB": "acb",
    "RepVGG": "repvgg",
    "DBB": "dbb",
    "DyRep": "dyrep",
}
"""The arms, and the method of each."""
SEARCH = "RepOpt's search"
AFTER_SEARCH = ("RepOpt", "SGS from RepOpt's weights")
"""The arms that start from the scales of a search, whose time counts as theirs."""


def arms(scale: Scale) -> tuple[Arm, ...]:
    """All methods, after the search that some of them start from."""
    group = {"Dataset": FASHION if scale == "pocket" else "CIFAR-100"}
    search = Arm(group=group, label=SEARCH, config=_search_config(scale), shown=False)
    methods = (
        Arm(
            group=group,
            label=label,
            config=_config(scale, method),
            reference=label == "Plain",
            backbone=search.key if label in AFTER_SEARCH else None,
            pays_for_backbone=label in AFTER_SEARCH,
        )
        for label, method in ARMS.items()
    )
    return (search, *methods)


def _config(scale: Scale, method: str) -> TrainConfig:
    if scale == "paper":
        return recipes.cifar_appendix("vgg16-slim", method)
    if scale == "desk":
        return recipes.desk(method)
    config = recipes.pocket(method)
    return replace(config, model=ModelConfig(name="vgg11-linear", width=0.125))


def _search_config(scale: Scale) -> TrainConfig:
    """A third of the epochs, in which scalings and branches would change as often, in proportion."""
    config = _config(scale, "repopt-search")
    epochs = max(2, config.budget.epochs // 3)
    share, until = epochs / config.budget.epochs, config.dyrep.until
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


RIVALS = Study(
    name="rivals",
    title={
        "paper": "VGG-16 on CIFAR-100, all methods",
        "desk": "VGG-11 on CIFAR-100, all methods",
        "pocket": f"VGG-11 on {FASHION}, all methods",
    },
    shows=OWN,
    question="Which method gives the best network for the same number of epochs, and what does it cost?",
    arms=arms,
    figures=("cost", "gains", "learning-curves", "overhead"),
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": "The slim VGG-16 of Table 1 with the appendix' training. RepOpt's search takes a third of the epochs, "
        "on the same images, and its time counts; its authors search with a recipe of their own.",
        "desk": f"{DESK_VGG} RepOpt's search takes 10 epochs on the same images, and its time counts.",
        "pocket": POCKET,
    },
    times={"paper": "about 35 GPU hours", "desk": "6 hours on 2 cores", "pocket": "3 minutes on 2 cores"},
)
