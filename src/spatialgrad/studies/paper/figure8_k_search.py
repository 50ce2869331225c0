"""Figure 8: the search for k; one curve per network, normalised so that the baseline is 0 and k = 5 is 1."""

from __future__ import annotations

from spatialgrad.studies.paper.scales import FASHION, POCKET, desk_text, held_out, shortened
from spatialgrad.studies.paper.table2_imagenet import resnet
from spatialgrad.studies.study import Arm, Scale, Search, Study
from spatialgrad.train import recipes
from spatialgrad.train.config.groups import TrainConfig
from spatialgrad.train.config.io import with_values

K = tuple(float(k) for k in range(1, 8))


def arms(scale: Scale) -> tuple[Arm, ...]:
    """For each network, the baseline and every k."""
    found: list[Arm] = []
    for (model, dataset), config in _networks(scale).items():
        group = {"Model": model, "Dataset": dataset}
        baseline = with_values(config, {"method.name": "baseline"})
        found.append(Arm(group=group, label="baseline", config=baseline, reference=True))
        found += [Arm(group=group, label=f"k = {k:g}", config=with_values(config, {"scaling.k": k})) for k in K]
    return tuple(found)


def searches(scale: Scale) -> tuple[Search, ...]:
    """The best k of each network; the points are the arms, so nothing is trained twice."""
    return tuple(
        Search(name=f"k-of-{model.lower()}", config=config, grid={"scaling.k": K})
        for (model, _), config in _networks(scale).items()
    )


def _networks(scale: Scale) -> dict[tuple[str, str], TrainConfig]:
    if scale == "paper":
        networks = {("VGG-16", "CIFAR-100"): recipes.cifar_table1("cifar100")} | {
            (f"ResNet-{layers}", "ImageNet"): resnet("paper", f"resnet{layers}", "sgs") for layers in (18, 34, 50)
        }
    elif scale == "desk":
        networks = {("VGG-11", "CIFAR-100"): shortened(recipes.desk(), epochs=30, limit=16_000)}
    else:
        networks = {("VGG-11", FASHION): shortened(recipes.pocket(), epochs=4, limit=2_000)}
    return {name: held_out(config) for name, config in networks.items()}


K_SEARCH = Study(
    name="k-search",
    title="The search for k",
    shows="Figure 8",
    question="Is k = 5 a good choice for every network and data set?",
    arms=arms,
    searches=searches,
    figures=("k-curve", "learning-curves"),
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": "The settings of Tables 1 and 2, evaluated on 20 % of the training images, which are held out. The "
        "paper's figure prints no numbers.",
        "desk": "VGG-11 at a quarter of its width on CIFAR-100, evaluated on 20 % of the training images, which are "
        f"held out. {desk_text(images='16,000 of the remaining')}",
        "pocket": f"{POCKET} Evaluated on 20 % of the training images, which are held out.",
    },
    times={"paper": "about 450 GPU days", "desk": "4 hours on 2 cores", "pocket": "2 minutes on 2 cores"},
)
