"""Where scalings come from: passes of their own, the training's passes, autocorrelation, several k, a grid search."""

from __future__ import annotations

from typing import Any

from spatialgrad.studies.paper.table3_search_methods import SEARCH_METHODS
from spatialgrad.studies.scales import (
    DESK_VGG,
    LONG,
    OWN,
    POCKET,
    arms_of,
    at_length,
    at_scale,
    on_cifar100,
    shortened,
    titled,
)
from spatialgrad.studies.study import Arm, Scale, Search, Study
from spatialgrad.train import recipes
from spatialgrad.train.config import TrainConfig, with_values

K = (2.0, 3.0, 5.0, 7.0, 10.0)
PLAIN = {"method.name": "baseline"}
LIVE_ARMS: dict[str, dict[str, Any]] = {"update(loader)": {}, "live": {"scaling.live": True}}
MEASUREMENT_ARMS: dict[str, dict[str, Any]] = {
    "Plain": PLAIN,
    "SGS": {},
    "live, every 5 epochs": {"scaling.live": True},
    "live, doubling": {"scaling.live": True, "scaling.schedule": "doubling"},
    "autocorrelation": {"method.name": "sgs-autocorrelation"},
}
SOURCES_ARMS: dict[str, dict[str, Any]] = {
    "Plain": PLAIN,
    **{f"mutual information, k = {k:g}": {"scaling.k": k} for k in K},
    "mutual information, live": {"scaling.live": True},
    "autocorrelation": {"method.name": "sgs-autocorrelation"},
}
"""The arms of each study, by what they change in its training."""
GRID_SEARCH = "alpha-beta"
"""The search of Table 3, for the best scaling that all layers and epochs share."""


def live_arms(scale: Scale) -> tuple[Arm, ...]:
    """The paper's procedure, and the same schedule measured live."""
    return _arms(scale, at_scale(scale, "sgs", recipes.cifar_appendix("vgg16-slim")), LIVE_ARMS)


def measurement_arms(scale: Scale) -> tuple[Arm, ...]:
    """Plain training, the paper's procedure, other ways to measure, and what the paper's has measured in the end."""
    arms = _arms(scale, at_length(scale, "sgs", LONG[scale]), MEASUREMENT_ARMS)
    fixed = with_values(arms[0].config, {"method.name": "sgs-static"})
    return (
        *arms,
        Arm(group=arms[0].group, label="SGS, G fixed from the end of another run", config=fixed, backbone=arms[1].key),
    )


def sources_arms(scale: Scale) -> tuple[Arm, ...]:
    """Plain training, and one row per source."""
    config = at_scale(scale, "sgs", recipes.ablation_search())
    if scale == "pocket":
        config = shortened(config, epochs=4)
    static = with_values(config, {"method.name": "sgs-static"})
    return (
        *_arms(scale, config, SOURCES_ARMS),
        Arm(group=on_cifar100(scale), label="best α and β", config=static, tuned_by=GRID_SEARCH),
    )


def sources_searches(scale: Scale) -> tuple[Search, ...]:
    """The grid of α and β."""
    return tuple(search for search in SEARCH_METHODS.searches(scale) if search.name == GRID_SEARCH)


def _arms(scale: Scale, config: TrainConfig, changes: dict[str, dict[str, Any]]) -> tuple[Arm, ...]:
    return arms_of(on_cifar100(scale), {label: with_values(config, values) for label, values in changes.items()})


LIVE = Study(
    name="live",
    title=titled("VGG-11", ", scalings measured live", paper="VGG-16"),
    shows=OWN,
    question="Are scalings that are measured during training as good as those of the paper's procedure?",
    arms=live_arms,
    figures=("gains", "learning-curves", "scalings", "overhead"),
    num_seeds={"paper": 3, "desk": 3, "pocket": 2},
    differences={
        "paper": "Table 1's training with the slim VGG-16. Live, the scalings are measured in the augmented batches of "
        "the training, with BatchNorm in training mode.",
        "desk": f"{DESK_VGG} 20,000 training images, 30 epochs, scalings updated every 5 epochs. Live, the scalings "
        "are measured in the augmented batches of the training, with BatchNorm in training mode.",
        "pocket": POCKET,
    },
    times={"paper": "15 GPU hours", "desk": "1 hour on 2 cores", "pocket": "2 minutes on 2 cores"},
)
DOUBLING = "after 100, 200, 400, 800 and 1,600 steps, and then every 1,955 steps."
MEASUREMENT = Study(
    name="measurement",
    title=titled("VGG-11", ", ways to measure"),
    shows=OWN,
    question="Does it matter when and how scalings are measured?",
    arms=measurement_arms,
    figures=("gains", "learning-curves", "scalings"),
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": f"The appendix' training, 200 epochs. Doubling: {DOUBLING}",
        "desk": f"{DESK_VGG} 20,000 images, batch size 128, 60 epochs with cutout, learning rate 0.1, weight decay "
        f"5e-4, single precision. Scalings updated every 5 epochs; doubling: {DOUBLING}",
        "pocket": POCKET,
    },
    times={"paper": "about 15 GPU hours", "desk": "2 hours on 2 cores", "pocket": "2 minutes on 2 cores"},
)
DEFAULT_K = "k is 5 where it is not named, for autocorrelation as well."
SOURCES = Study(
    name="sources",
    title=titled("VGG-11", ", sources of scalings"),
    shows=OWN,
    question="Does it matter where the scalings come from?",
    arms=sources_arms,
    searches=sources_searches,
    figures=("gains", "learning-curves", "scalings", "overhead"),
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": f"Table 3's training. {DEFAULT_K}",
        "desk": f"{DESK_VGG} 20,000 training images, 30 epochs, scalings updated every 5 epochs. {DEFAULT_K} The grid "
        "search trains its 49 points for 15 epochs on 8,000 images.",
        "pocket": f"{POCKET} {DEFAULT_K} The grid has 9 points, each trained for 2 epochs.",
    },
    times={"paper": "about 35 GPU hours", "desk": "3 hours on 2 cores", "pocket": "3 minutes on 2 cores"},
)
