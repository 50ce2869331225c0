"""Figure 8: accuracy over k, one curve per network, normalised so that the baseline is 0 and k = 5 is 1.

The curves are test accuracies of networks that are trained on all images. The paper chooses k apart from them, by a
search with one network on held-out training images; so does this study.
"""

from __future__ import annotations

from spatialgrad.studies.paper.table2_imagenet import resnet
from spatialgrad.studies.scales import DESK, DESK_VGG, FASHION, POCKET, TABLE_1, TABLE_2, arms_of, held_out, shortened
from spatialgrad.studies.study import Arm, Scale, Search, Study
from spatialgrad.train import recipes
from spatialgrad.train.config import TrainConfig, with_values

K = (2.0, 3.0, 4.0, 5.0, 6.0, 7.0)
"""The paper's grid of k."""
SEARCH = "The search evaluates each k once on 20 % of the training images, which are held out."


def arms(scale: Scale) -> tuple[Arm, ...]:
    """For each network, the baseline and every k."""
    return tuple(
        arm
        for (model, dataset), config in _networks(scale).items()
        for arm in arms_of(
            {"Model": model, "Dataset": dataset},
            {"baseline": with_values(config, {"method.name": "baseline"})}
            | {f"k = {k:g}": with_values(config, {"scaling.k": k}) for k in K},
        )
    )


def searches(scale: Scale) -> tuple[Search, ...]:
    """The best k of the first network: VGG-16 on CIFAR-100 in the paper."""
    ((model, _), config), *_ = _networks(scale).items()
    if scale == "desk":
        config = shortened(config, epochs=30, limit=16_000)
    return (Search(name=f"k-of-{model.lower()}", config=held_out(config), grid={"scaling.k": K}),)


def _networks(scale: Scale) -> dict[tuple[str, str], TrainConfig]:
    if scale == "paper":
        return {("VGG-16", "CIFAR-100"): recipes.cifar_table1("cifar100")} | {
            (f"ResNet-{layers}", "ImageNet"): resnet("paper", f"resnet{layers}", "sgs") for layers in (18, 34, 50)
        }
    if scale == "desk":
        return {("VGG-11", "CIFAR-100"): recipes.desk()}
    return {("VGG-11", FASHION): shortened(recipes.pocket(), epochs=4, limit=2_000)}


K_SEARCH = Study(
    name="k-search",
    title="The choice of k",
    shows="Figure 8",
    question="Is k = 5 a good choice for every network and data set?",
    arms=arms,
    searches=searches,
    figures=("k-curve", "learning-curves"),
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": f"VGG-16: {TABLE_1} ResNets: {TABLE_2} {SEARCH} The paper prints the grid of k for this search only; "
        "the curves have the same. Its figure prints neither numbers nor how many runs it averages.",
        "desk": f"{DESK_VGG} {DESK} {SEARCH} It trains on the remaining 16,000.",
        "pocket": f"{POCKET} {SEARCH}",
    },
    times={"paper": "about 400 GPU days", "desk": "4 hours on 2 cores", "pocket": "3 minutes on 2 cores"},
)
