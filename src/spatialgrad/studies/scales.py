"""The three scales of a study: the published training, one that fits an evening on a CPU, and one of minutes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from spatialgrad.studies.study import Arm, Scale
from spatialgrad.train import recipes
from spatialgrad.train.config import ModelConfig, TrainConfig

OWN = "of this package's own, not in the paper"
"""What a study says about its place in the paper if it has none."""

PLAIN_AND_SGS = {"Plain": "baseline", "SGS": "sgs"}
"""The two arms of many studies of our own, and the method of each."""

LONG: Mapping[Scale, int] = {"paper": 200, "desk": 60, "pocket": 4}
"""Number of epochs where 30 at desk scale are too few for plain training to fit its images."""

BASELINE_AND_SGS = {"Baseline": "baseline", "SGS (ours)": "sgs"}
"""The two columns of the appendix' tables, and the method of each."""

FASHION = "Fashion-MNIST"
"""The images shipped with the package, on which pocket studies train where the paper uses CIFAR-100 or ImageNet."""

VALIDATION = 0.2
"""Share of the training images that searches hold out, as in the paper."""

DESK_NETWORKS = {
    "vgg11": ("vgg11-linear", 0.25),
    "resnet18": ("resnet18", 0.125),
    "resnet34": ("resnet34", 0.125),
    "resnet50": ("resnet50", 0.125),
    "shufflenet": ("shufflenet", 0.5),
    "mobilenetv2": ("mobilenetv2", 0.25),
    "seresnet18": ("seresnet18", 0.125),
    "seresnet34": ("seresnet34", 0.125),
    "preactresnet18": ("preactresnet18", 0.125),
    "preactresnet34": ("preactresnet34", 0.125),
    "pyramidnet110-a48": ("pyramidnet110-a48", 0.25),
    "pyramidnet110-a84": ("pyramidnet110-a84", 0.125),
    "pyramidnet110-a270": ("pyramidnet110-a270", 0.0625),
    "xception": ("xception", 0.125),
}
"""The network and its width that stand for each network of the paper at desk scale.

An epoch of 20,000 images takes at most a few minutes on two cores. The VGGs of the appendix have two hidden layers of
4096 with dropout in their classifier, with which 30 epochs are too few to fit. VGG-13, 16 and 19 are missing: they are
too deep for so few steps, even without these layers. After 3 epochs on CIFAR-100, `vgg11-linear` has reached 14 %,
`vgg13-slim` 8 %, and VGG-16 with a linear classifier 6 %.
"""

IN_CONFIGURATION = (
    "momentum without Nesterov, weight decay on all parameters, a learning rate that ends at 1e-6, and no incomplete "
    "last batch"
)
TABLE_1 = (
    "Settings as printed in the paper. Not in its text but in the authors' configuration: the slim VGG-16, cutout of "
    f"16 pixels, {IN_CONFIGURATION}."
)
APPENDIX = (
    "Settings as printed in the appendix. Not in its text but in the authors' code and configuration: the networks of "
    f"weiaicunzai/pytorch-cifar100, the size of the cutout (16 pixels), {IN_CONFIGURATION}."
)
TABLE_2 = (
    "Settings as printed in the paper, but momentum 0.9: its text says 0.1, the authors' configuration 0.9. Not in the "
    "text but in that configuration: Nesterov momentum, no weight decay on biases and BatchNorm, the strength of the "
    "colour jitter (0.06), a learning rate that ends at 1e-7, and no incomplete last batch. The text does not define "
    "which pairs of pixels are near in value; the choice here is modelled on the authors' code."
)
RUNS_UNKNOWN = "The paper does not state how many runs it averages."


def desk_text(images: str = "20,000", batch: str = "128", epochs: str = "30", lr: str = "learning rate 0.1") -> str:
    """How desk studies differ from the paper; the defaults are those of the recipe."""
    return (
        f"Narrow networks, {images} training images, batch size {batch}, {epochs} epochs with cutout, {lr}, weight "
        "decay 5e-4, scalings updated every 5 epochs. Accuracies are lower than in the paper; compare the methods with "
        "each other."
    )


DESK_VGG = (
    "VGG-11 at a quarter of its width, with a linear classifier: with the appendix' hidden layers of 4096 and dropout "
    "it would not fit in so few epochs."
)
DESK = desk_text()
POCKET = (
    "A check that the pipeline works, without any claim about accuracy: very narrow networks, a few epochs, and the "
    "grey Fashion-MNIST images shipped with the package in place of the paper's data."
)

Recipe = Callable[[str, str], TrainConfig]


def sized(scale: Scale, model: str, method: str, paper: Recipe = recipes.cifar_appendix) -> TrainConfig:
    """A network and a method at a scale.

    Args:
        scale: paper, desk or pocket.
        model: A network of the paper for 32×32 images; at desk scale, one that fits in 30 epochs stands for it.
        method: Name of the training method.
        paper: Recipe of the published settings, called with the model and the method.
    """
    if scale == "paper":
        return paper(model, method)
    if scale == "desk":
        name, width = DESK_NETWORKS[model]
        return replace(recipes.desk(method), model=ModelConfig(name=name, width=width))
    return replace(recipes.pocket(method), model=ModelConfig(name=model, width=0.125))


def at_scale(scale: Scale, method: str, paper: TrainConfig) -> TrainConfig:
    """A published training or, below the paper's scale, the recipe that stands for it."""
    if scale == "paper":
        return paper
    return recipes.desk(method) if scale == "desk" else recipes.pocket(method)


def at_length(scale: Scale, method: str, epochs: int) -> TrainConfig:
    """The appendix' training of VGG-11 on CIFAR-100, or what stands for it, for a number of epochs."""
    return shortened(at_scale(scale, method, recipes.cifar_appendix(method=method)), epochs=epochs)


def on_cifar100(scale: Scale) -> dict[str, str]:
    """The group of the arms of a study on CIFAR-100, which trains on the shipped images at pocket scale."""
    return {"Dataset": FASHION if scale == "pocket" else "CIFAR-100"}


def titled(what: str, more: str = "", *, paper: str | None = None) -> dict[Scale, str]:
    """The title of a study on CIFAR-100 that trains on the shipped images at pocket scale.

    Args:
        what: What is trained: "VGG-11".
        more: What follows the data set.
        paper: What is trained at the paper's scale, if that is something else.
    """
    return {
        "paper": f"{paper or what} on CIFAR-100{more}",
        "desk": f"{what} on CIFAR-100{more}",
        "pocket": f"{what} on {FASHION}{more}",
    }


def arms_of(group: Mapping[str, str], configs: Mapping[str, TrainConfig]) -> tuple[Arm, ...]:
    """An arm for each labelled config; the first one is the reference of the others."""
    return tuple(
        Arm(group=group, label=label, config=config, reference=number == 0)
        for number, (label, config) in enumerate(configs.items())
    )


def published_for(scale: Scale, what: str) -> str:
    """What the paper measured, for an arm that trains something else: below the paper's scale."""
    return "" if scale == "paper" else what


def shortened(config: TrainConfig, *, epochs: int, limit: int | None = None) -> TrainConfig:
    """A config with another number of epochs, and of training images if one is given."""
    limit = config.data.limit if limit is None else limit
    return replace(config, budget=replace(config.budget, epochs=epochs), data=replace(config.data, limit=limit))


def held_out(config: TrainConfig) -> TrainConfig:
    """A config that evaluates on held-out training images instead of the test images, as searches do."""
    return replace(config, data=replace(config.data, validation=VALIDATION))
