"""What Tables 7 and 8 share: pre-training and fine-tuning, each with and without scaling.

The paper prints two of the four combinations: scaling in both trainings, and in neither. The other two show where a
gain comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from spatialgrad.studies.paper.scales import published_for, shortened
from spatialgrad.studies.study import Arm, Published, Scale
from spatialgrad.train import recipes
from spatialgrad.train.config import ModelConfig, TrainConfig

COMBINATIONS = {
    "Baseline": ("baseline", "baseline"),
    "SGS in pre-training": ("sgs", "baseline"),
    "SGS in fine-tuning": ("baseline", "sgs"),
    "SGS": ("sgs", "sgs"),
}
"""Methods of pre-training and fine-tuning, by the arm's label."""
DESK_BACKBONE = "The backbone is pre-trained for 30 epochs on 20,000 CIFAR-100 images in place of ImageNet."
POCKET_BACKBONE = (
    "The backbone is pre-trained for 2 epochs on 1,800 drawn shapes. A check that the pipeline works, without any "
    "claim about accuracy."
)
PAPER_BACKBONE = (
    "How often scalings were measured in fine-tuning is not stated either: here as on ImageNet, every 5 epochs from 2 "
    "batches without pairs of near pixels. Backbones are trained as in the study imagenet."
)
TIMES: dict[Scale, str] = {
    "paper": "about 110 GPU days for the backbones alone",
    "desk": "a night on 2 cores",
    "pocket": "4 minutes on 2 cores",
}

FineTuning = Callable[[Scale, str, str], TrainConfig]
"""The training of a network (`pspnet18`) with a method at a scale, without the weights of its backbone."""


def fine_tuning_arms(
    scale: Scale, published: Mapping[str, Mapping[str, Published]], dataset: str, family: str, fine_tuning: FineTuning
) -> tuple[Arm, ...]:
    """The arms of a table: backbones, and the four combinations for each network.

    Args:
        scale: Below the paper's scale, only the first network is trained.
        published: Printed values by network and label.
        dataset: The paper's data set.
        family: Name of the networks in the package, without their depth.
        fine_tuning: Gives the config of a fine-tuning.
    """
    found = []
    for model in list(published)[: None if scale == "paper" else 1]:
        depth = model.rpartition("-")[2]
        width = fine_tuning(scale, f"{family}{depth}", "baseline").model.width
        backbones = {
            method: Arm(
                group={"Model": f"ResNet-{depth} backbone"},
                label=label,
                config=_pre_training(scale, f"resnet{depth}-imagenet", method, width),
                reference=method == "baseline",
                shown=False,
            )
            for label, method in (("Baseline", "baseline"), ("SGS", "sgs"))
        }
        found += list(backbones.values())
        found += [
            Arm(
                group={"Model": model},
                label=label,
                config=fine_tuning(scale, f"{family}{depth}", second),
                reference=label == "Baseline",
                published=(published[model][label],) if label in published[model] else (),
                published_for=published_for(scale, f"{model} on {dataset}") if label in published[model] else "",
                backbone=backbones[first].key,
                note="" if label in published[model] else "beyond the paper",
            )
            for label, (first, second) in COMBINATIONS.items()
        ]
    return tuple(found)


def _pre_training(scale: Scale, model: str, method: str, width: float) -> TrainConfig:
    """The classification training of a backbone, on ImageNet or its stand-in."""
    if scale == "paper":
        return recipes.imagenet(model, method)
    config = replace(recipes.desk(method), model=ModelConfig(name=model, width=width))
    if scale == "desk":
        return config
    config = shortened(config, epochs=2)
    return replace(config, data=replace(config.data, name="shapes-mini", limit=None))
