"""The same training at three scales: the published one, an evening on a CPU, and minutes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from spatialgrad.studies.study import Scale
from spatialgrad.train import recipes
from spatialgrad.train.config.groups import ModelConfig, TrainConfig, check_name

FASHION = "Fashion-MNIST for CIFAR-100"
"""What pocket studies call their data: the images that come with the package, where the paper has CIFAR-100."""

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
"""Widths at which an epoch of 20,000 images takes minutes on two cores at most."""

PUBLISHED_SETTINGS = "The published settings."


def desk_text(images: str = "20,000", batch: str = "128", epochs: str = "30", lr: str = "learning rate 0.1") -> str:
    """What desk studies do differently from the paper; by default as the recipe has it."""
    return (
        f"Narrow networks, {images} training images, batch {batch}, {epochs} epochs with cutout, {lr}, weight decay "
        "5e-4, scalings every 5 epochs: accuracies are lower than the paper's; differences between methods are what to "
        "look at."
    )


DESK = desk_text()
POCKET = (
    "A check that everything works, without any claim about accuracy: very narrow networks, a few epochs, and the grey "
    "images of Fashion-MNIST that come with the package in place of the paper's."
)

Recipe = Callable[[str, str], TrainConfig]


def sized(scale: Scale, model: str, method: str, paper: Recipe = recipes.cifar_appendix) -> TrainConfig:
    """A network and a method at a scale.

    Args:
        scale: One of three.
        model: A network for 32×32 images.
        method: Its name.
        paper: Recipe of the published settings, called with model and method.
    """
    if scale == "paper":
        return paper(model, method)
    if scale == "desk":
        return replace(recipes.desk(method), model=ModelConfig(name=model, width=DESK_WIDTH[model]))
    return replace(recipes.pocket(method), model=ModelConfig(name=model, width=0.125))


def shortened(config: TrainConfig, *, epochs: int, limit: int | None = None) -> TrainConfig:
    """A config with another number of epochs, and of training images if any is given."""
    limit = config.data.limit if limit is None else limit
    return replace(config, budget=replace(config.budget, epochs=epochs), data=replace(config.data, limit=limit))


def with_values(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """A config with other values of some fields.

    Args:
        config: All else is taken from it.
        values: By dotted field, such as `{"scaling.alpha": 1.25}`.

    Raises:
        ConfigError: If a field is unknown or its value is wrong.
    """
    for dotted, value in values.items():
        group, _, name = dotted.rpartition(".")
        check_name("group", group, [each for each in config.__dataclass_fields__ if "_" not in each])
        part = getattr(config, group)
        check_name("field", dotted, [f"{group}.{each}" for each in part.__dataclass_fields__])
        config = replace(config, **{group: replace(part, **{name: value})})
    return config
