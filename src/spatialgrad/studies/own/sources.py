"""Where scalings come from: mutual information with several k, measured live, autocorrelation, or a grid search."""

from __future__ import annotations

from spatialgrad.studies.own.datasets import OWN
from spatialgrad.studies.paper.scales import DESK_VGG, FASHION, POCKET, shortened
from spatialgrad.studies.paper.table3_search_methods import SEARCH_METHODS
from spatialgrad.studies.study import Arm, Scale, Search, Study
from spatialgrad.train import recipes
from spatialgrad.train.config import TrainConfig, with_values

K = (2.0, 3.0, 5.0, 7.0, 10.0)
GRID_SEARCH = "alpha-beta"
"""The search of Table 3, for the best scaling that all layers and epochs share."""


def arms(scale: Scale) -> tuple[Arm, ...]:
    """Plain training, and one row per source."""
    config = _config(scale)
    group = {"Dataset": FASHION if scale == "pocket" else "CIFAR-100"}
    sources: dict[str, dict[str, object]] = {
        **{f"mutual information, k = {k:g}": {"scaling.k": k} for k in K},
        "mutual information, live": {"scaling.live": True},
        "autocorrelation": {"method.name": "sgs-autocorrelation"},
    }
    return (
        Arm(group=group, label="Plain", config=with_values(config, {"method.name": "baseline"}), reference=True),
        *(Arm(group=group, label=label, config=with_values(config, values)) for label, values in sources.items()),
        Arm(
            group=group,
            label="best α and β",
            config=with_values(config, {"method.name": "sgs-static"}),
            tuned_by=GRID_SEARCH,
        ),
    )


def searches(scale: Scale) -> tuple[Search, ...]:
    """The grid of α and β."""
    return tuple(search for search in SEARCH_METHODS.searches(scale) if search.name == GRID_SEARCH)


def _config(scale: Scale) -> TrainConfig:
    if scale == "paper":
        return recipes.ablation_search("sgs")
    return recipes.desk("sgs") if scale == "desk" else shortened(recipes.pocket("sgs"), epochs=4)


COMMON = "k is 5 where it is not named, for autocorrelation as well."

SOURCES = Study(
    name="sources",
    title={
        "paper": "VGG-11 on CIFAR-100, sources of scalings",
        "desk": "VGG-11 on CIFAR-100, sources of scalings",
        "pocket": f"VGG-11 on {FASHION}, sources of scalings",
    },
    shows=OWN,
    question="Does it matter where the scalings come from?",
    arms=arms,
    searches=searches,
    figures=("gains", "learning-curves", "scalings", "overhead"),
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": f"Table 3's training. {COMMON}",
        "desk": f"{DESK_VGG} 20,000 training images, 30 epochs, scalings updated every 5 epochs. {COMMON} The grid "
        "search trains its 49 points for 15 epochs on 8,000 images.",
        "pocket": f"{POCKET} {COMMON} The grid has 9 points, each trained for 2 epochs.",
    },
    times={"paper": "about 35 GPU hours", "desk": "3 hours on 2 cores", "pocket": "3 minutes on 2 cores"},
)
