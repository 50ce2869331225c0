"""The three scales of a study: the published training, one that fits an evening on a CPU, and one of minutes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from spatialgrad.studies.study import Scale
from spatialgrad.train import recipes
from spatialgrad.train.config.groups import ModelConfig, TrainConfig

BASELINE_AND_SGS = {"Baseline": "baseline", "SGS (ours)": "sgs"}
"""The two columns of the appendix' tables, and the method of each."""

FASHION = "Fashion-MNIST for CIFAR-100"
"""How pocket studies label their data: the images shipped with the package, where the paper uses CIFAR-100."""

VALIDATION = 0.2
"""Share of the training images that searches hold out, as in the paper."""

DESK_WIDTH = {
    "vgg11": 0.25,
    "vgg13": 0.25,
    "vgg16": 0.25,
    "vgg19": 0.25,
    "resnet18": 0.125,
    "resnet34": 0.125,
    "resnet50": 0.125,
    "shufflenet": 0.5,
    "mobilenetv2": 0.25,
    "seresnet18": 0.125,
    "seresnet34": 0.125,
    "preactresnet18": 0.125,
    "preactresnet34": 0.125,
    "pyramidnet110-a48": 0.25,
    "pyramidnet110-a84": 0.125,
    "pyramidnet110-a270": 0.0625,
    "xception": 0.125,
}
"""Widths at which an epoch of 20,000 images takes at most a few minutes on two cores."""

PUBLISHED_SETTINGS = "The published settings."


def desk_text(images: str = "20,000", batch: str = "128", epochs: str = "30", lr: str = "learning rate 0.1") -> str:
    """How desk studies differ from the paper; the defaults are those of the recipe."""
    return (
        f"Narrow networks, {images} training images, batch size {batch}, {epochs} epochs with cutout, {lr}, weight "
        "decay 5e-4, scalings updated every 5 epochs. Accuracies are lower than in the paper; compare the methods with "
        "each other."
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
        model: A network for 32×32 images.
        method: Name of the training method.
        paper: Recipe of the published settings, called with the model and the method.
    """
    if scale == "paper":
        return paper(model, method)
    if scale == "desk":
        return replace(recipes.desk(method), model=ModelConfig(name=model, width=DESK_WIDTH[model]))
    return replace(recipes.pocket(method), model=ModelConfig(name=model, width=0.125))


def shortened(config: TrainConfig, *, epochs: int, limit: int | None = None) -> TrainConfig:
    """A config with another number of epochs, and of training images if one is given."""
    limit = config.data.limit if limit is None else limit
    return replace(config, budget=replace(config.budget, epochs=epochs), data=replace(config.data, limit=limit))


def held_out(config: TrainConfig) -> TrainConfig:
    """A config that evaluates on held-out training images instead of the test images, as searches do."""
    return replace(config, data=replace(config.data, validation=VALIDATION))
