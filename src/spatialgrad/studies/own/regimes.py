"""When does it help? The gain by the number of training steps and of training images."""

from __future__ import annotations

from dataclasses import replace

from spatialgrad.studies.own.datasets import OWN, PLAIN_AND_SGS
from spatialgrad.studies.paper.scales import FASHION, POCKET
from spatialgrad.studies.study import Arm, Scale, Study
from spatialgrad.train import recipes
from spatialgrad.train.config import ModelConfig, TrainConfig

STEPS: dict[Scale, tuple[int, ...]] = {
    "paper": (2000, 10_000, 50_000),
    "desk": (1000, 3000, 10_000),
    "pocket": (40, 120),
}
IMAGES: dict[Scale, tuple[int, ...]] = {
    "paper": (2000, 10_000, 50_000),
    "desk": (2000, 8000, 32_000),
    "pocket": (640, 2560),
}
UPDATES = 6
"""Number of updates of the scalings in every training: as many as the desk recipe makes in its 30 epochs."""


def arms(scale: Scale) -> tuple[Arm, ...]:
    """Both methods for each number of images and of steps, the shortest trainings first."""
    return tuple(
        Arm(
            group={"Training images": f"{images:,}", "Training steps": f"{steps:,}"},
            label=label,
            config=_config(scale, images, steps, method),
            reference=method == "baseline",
        )
        for steps in STEPS[scale]
        for images in IMAGES[scale]
        for label, method in PLAIN_AND_SGS.items()
    )


def _config(scale: Scale, images: int, steps: int, method: str) -> TrainConfig:
    if scale == "paper":
        config = recipes.cifar_appendix("vgg16-slim", method)
    else:
        config = recipes.desk(method) if scale == "desk" else recipes.pocket(method)
    if scale != "pocket":
        config = replace(config, data=replace(config.data, name="cifar10"))
    if scale == "desk":
        config = replace(
            config,
            model=ModelConfig(name="vgg11-linear", width=0.125),
            data=replace(config.data, batch_size=64),
            optimizer=replace(config.optimizer, lr=0.05),
        )
    data = replace(config.data, limit=images, drop_last=True)
    epochs = max(2, round(steps / (images // data.batch_size)))
    every = max(1, round(epochs / UPDATES))
    return replace(
        config,
        data=data,
        scaling=replace(config.scaling, every=every),
        budget=replace(config.budget, epochs=epochs, evaluate_every=every),
    )


REGIMES = Study(
    name="regimes",
    title={
        "paper": "VGG-16 on parts of CIFAR-10",
        "desk": "A narrow VGG-11 on parts of CIFAR-10",
        "pocket": f"A narrow VGG-11 on parts of {FASHION}",
    },
    shows=OWN,
    question="For how many images and how long a training does scaling help?",
    arms=arms,
    figures=("gain-map", "gains", "learning-curves"),
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": "Table 1's network, the appendix' training, six updates of the scalings in every training.",
        "desk": "VGG-11 with a linear classifier at an eighth of its width, batch size 64, learning rate 0.05, weight "
        "decay 5e-4, cutout, six updates of the scalings in every training. Numbers of steps are rounded to whole "
        "epochs.",
        "pocket": POCKET,
    },
    times={"paper": "a GPU day", "desk": "2 hours on 2 cores", "pocket": "2 minutes on 2 cores"},
)
