"""Plain training and scaling on images of other kinds than CIFAR's: clothes, small photographs, larger photographs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spatialgrad.studies.paper.scales import DESK_VGG, FASHION, POCKET
from spatialgrad.studies.study import Arm, Scale, Study
from spatialgrad.train import recipes
from spatialgrad.train.config import TrainConfig

OWN = "of this package's own, not in the paper"
"""What a study says about its place in the paper if it has none."""
PLAIN_AND_SGS = {"Plain": "baseline", "SGS": "sgs"}
"""The two arms of each group, and the method of each."""


@dataclass(frozen=True, kw_only=True)
class Images:
    """How a data set is trained at desk scale."""

    name: str
    image_size: int
    batch_size: int
    lr: float
    epochs: int
    cutout: int
    limit: int | None = None


DATASETS_AT_DESK = {
    FASHION: Images(name="fashion-mnist", image_size=32, batch_size=128, lr=0.1, epochs=30, cutout=16, limit=20_000),
    "Tiny-ImageNet, 20 classes": Images(
        name="folder:tiny-imagenet-20.tar", image_size=64, batch_size=64, lr=0.05, epochs=30, cutout=0
    ),
    "Imagenette-160, 8 classes": Images(
        name="folder:imagenette-160-mini.tar", image_size=96, batch_size=32, lr=0.05, epochs=60, cutout=0
    ),
}
"""Fewer images are trained in smaller batches, so that the number of steps stays above a thousand."""


def arms(scale: Scale) -> tuple[Arm, ...]:
    """Both methods on each data set; at pocket scale on the shipped images alone."""
    names = (FASHION,) if scale == "pocket" else tuple(DATASETS_AT_DESK)
    return tuple(
        Arm(group={"Dataset": name}, label=label, config=_config(scale, name, method), reference=method == "baseline")
        for name in names
        for label, method in PLAIN_AND_SGS.items()
    )


def _config(scale: Scale, dataset: str, method: str) -> TrainConfig:
    if scale == "pocket":
        return recipes.pocket(method)
    images = DATASETS_AT_DESK[dataset]
    config = recipes.desk(method) if scale == "desk" else recipes.cifar_appendix("vgg16-slim", method)
    data = replace(config.data, name=images.name, image_size=images.image_size, cutout=images.cutout)
    if scale == "paper":
        return replace(config, data=data)
    return replace(
        config,
        data=replace(data, batch_size=images.batch_size, limit=images.limit),
        optimizer=replace(config.optimizer, lr=images.lr),
        # Evaluating Fashion-MNIST's 10,000 test images after every epoch would take a sixth of the time.
        budget=replace(config.budget, epochs=images.epochs, evaluate_every=5),
    )


DATASETS = Study(
    name="datasets",
    title={
        "paper": "VGG-16 on other images than CIFAR",
        "desk": "VGG-11 on other images than CIFAR",
        "pocket": f"VGG-11 on {FASHION}",
    },
    shows=OWN,
    question="On which images does scaling help?",
    arms=arms,
    figures=("gains", "learning-curves", "scalings", "dependence"),
    num_seeds={"paper": 3, "desk": 5, "pocket": 2},
    differences={
        "paper": "The appendix' training for CIFAR-100, 200 epochs, with the slim VGG-16 of Table 1.",
        "desk": f"{DESK_VGG} 20,000 images of Fashion-MNIST; all of 20 classes of Tiny-ImageNet at 64×64 and of 8 "
        "classes of Imagenette at 96×96, with random resized crops and small batches. Weight decay 5e-4, scalings "
        "updated every 5 epochs.",
        "pocket": POCKET,
    },
    times={"paper": "a few GPU days", "desk": "3 hours on 2 cores", "pocket": "2 minutes on 2 cores"},
)
