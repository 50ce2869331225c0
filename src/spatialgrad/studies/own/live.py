"""Scalings measured in the training's own passes against scalings measured in passes of their own."""

from __future__ import annotations

from dataclasses import replace

from spatialgrad.studies.own.datasets import OWN
from spatialgrad.studies.paper.scales import DESK_VGG, FASHION, POCKET
from spatialgrad.studies.study import Arm, Scale, Study
from spatialgrad.train import recipes
from spatialgrad.train.config import TrainConfig

DATASETS: dict[Scale, str] = {"paper": "CIFAR-100", "desk": "CIFAR-100", "pocket": FASHION}


def arms(scale: Scale) -> tuple[Arm, ...]:
    """The paper's procedure, and the same schedule measured live."""
    return tuple(
        Arm(
            group={"Dataset": DATASETS[scale]},
            label=label,
            config=replace(config := _config(scale), scaling=replace(config.scaling, live=live)),
            reference=not live,
        )
        for label, live in (("update(loader)", False), ("live", True))
    )


def _config(scale: Scale) -> TrainConfig:
    if scale == "paper":
        return recipes.cifar_appendix("vgg16-slim", "sgs")
    return recipes.desk("sgs") if scale == "desk" else recipes.pocket("sgs")


LIVE = Study(
    name="live",
    title={
        "paper": "VGG-16 on CIFAR-100, scalings measured live",
        "desk": "VGG-11 on CIFAR-100, scalings measured live",
        "pocket": f"VGG-11 on {FASHION}, scalings measured live",
    },
    shows=OWN,
    question="Are scalings that are measured during training as good as those of the paper's procedure?",
    arms=arms,
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
