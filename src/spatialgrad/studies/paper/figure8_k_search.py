"""The search for k: one curve per network, normalised so that 0 is the baseline and 1 is k = 5."""

from __future__ import annotations

from dataclasses import replace

from spatialgrad.studies.paper.scales import FASHION, POCKET, desk_text, shortened, with_values
from spatialgrad.studies.paper.table2_imagenet import resnet
from spatialgrad.studies.study import Arm, Scale, Search, Study
from spatialgrad.train import recipes
from spatialgrad.train.config.groups import TrainConfig

K = tuple(float(k) for k in range(1, 8))
VALIDATION = 0.2


def arms(scale: Scale) -> tuple[Arm, ...]:
    """The baseline and every k, for each network."""
    found: list[Arm] = []
    for (model, dataset), config in _networks(scale).items():
        group = {"Model": model, "Dataset": dataset}
        baseline = replace(config, method=replace(config.method, name="baseline"))
        found.append(Arm(group=group, label="baseline", config=baseline, reference=True))
        found += [Arm(group=group, label=f"k = {k:g}", config=with_values(config, {"scaling.k": k})) for k in K]
    return tuple(found)


def searches(scale: Scale) -> tuple[Search, ...]:
    """The best k of each network; the points are the arms, so that nothing is trained twice."""
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
    return {
        name: replace(config, data=replace(config.data, validation=VALIDATION)) for name, config in networks.items()
    }


K_SEARCH = Study(
    name="k-search",
    title="The search for k",
    shows="Figure 8",
    question="Is k = 5 a good choice, whatever the network and the data?",
    arms=arms,
    searches=searches,
    figures=("k-curve", "learning-curves"),
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": "The settings of Tables 1 and 2, tested on 20 % of the training images that are held out; the paper's "
        "figure prints no numbers.",
        "desk": "VGG-11 at a quarter of its width on CIFAR-100, tested on 20 % of the training images, which are held "
        f"out. {desk_text(images='16,000 of the other')}",
        "pocket": f"{POCKET} Tested on 20 % of the training images, which are held out.",
    },
    times={"paper": "about 450 GPU days", "desk": "4 hours on 2 cores", "pocket": "2 minutes on 2 cores"},
)
