"""Tables 7 and 8: PSPNet on Cityscapes and pose ResNets on MPII.

Pre-training and fine-tuning are each done with and without scaling.
The paper prints two of the four combinations: scaling in both trainings, and in neither. The other two show where a
gain comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from spatialgrad.studies.scales import RUNS_UNKNOWN, published_for, shortened
from spatialgrad.studies.study import Arm, Published, Scale, Study
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


def _arms(
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


def _row(miou: float, macc: float, allacc: float) -> Published:
    return Published(mean=miou, other={"macc": macc, "allacc": allacc})


SEGMENTATION_PUBLISHED = {
    "PSPNet-18": {"Baseline": _row(72.8, 80.0, 95.3), "SGS": _row(73.7, 81.1, 95.4)},
    "PSPNet-34": {"Baseline": _row(76.1, 84.0, 95.7), "SGS": _row(76.8, 84.3, 95.9)},
    "PSPNet-50": {"Baseline": _row(75.4, 82.8, 95.8), "SGS": _row(75.6, 82.8, 95.9)},
}


def segmentation_arms(scale: Scale) -> tuple[Arm, ...]:
    """Three PSPNets; one of them below the paper's scale."""
    return _arms(scale, SEGMENTATION_PUBLISHED, "Cityscapes", "pspnet", _segmentation)


def _segmentation(scale: Scale, model: str, method: str) -> TrainConfig:
    if scale == "paper":
        return recipes.segmentation_cityscapes(model, method)
    config = (recipes.segmentation_camvid if scale == "desk" else recipes.segmentation_pocket)(method)
    # The recipe's learning rates are for a network without a pre-trained backbone.
    return replace(
        config,
        model=replace(config.model, name=model),
        optimizer=replace(config.optimizer, lr=0.01, head_factor=10.0),
    )


SEGMENTATION = Study(
    name="segmentation",
    title={"paper": "PSPNet on Cityscapes", "desk": "PSPNet on CamVid", "pocket": "PSPNet on drawn streets"},
    shows="Table 7",
    question="Does the gain carry over to semantic segmentation, and does it come from the backbone or from "
    "fine-tuning?",
    arms=segmentation_arms,
    figures=("examples", "learning-curves", "scalings", "overhead"),
    metric="miou",
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": "The paper names SemSeg as its code and prints no settings. Those of SemSeg are used, with these "
        "exceptions: the stem is the 7×7 convolution of the ImageNet ResNets, the first block of a stage keeps the "
        "previous dilation, images are not blurred and are interpolated once, batch normalization stays within each "
        "process, whole images are evaluated in one pass instead of windows with their mirror images, and classes that "
        f"are absent from the images do not count. {PAPER_BACKBONE} {RUNS_UNKNOWN}",
        "desk": "PSPNet-18 at a quarter of its width on CamVid (240×180) in place of Cityscapes, 30 epochs. "
        f"{DESK_BACKBONE}",
        "pocket": f"PSPNet-18 at an eighth of its width on street scenes drawn by the package. {POCKET_BACKBONE}",
    },
    times=TIMES,
)


POSE_PUBLISHED = {
    "MSRA ResNet-18": {"Baseline": Published(mean=83.8), "SGS": Published(mean=84.4)},
    "MSRA ResNet-34": {"Baseline": Published(mean=85.8), "SGS": Published(mean=86.2)},
    "MSRA ResNet-50": {"Baseline": Published(mean=85.3), "SGS": Published(mean=85.6)},
}


def pose_arms(scale: Scale) -> tuple[Arm, ...]:
    """Three pose ResNets; one of them below the paper's scale."""
    return _arms(scale, POSE_PUBLISHED, "MPII", "poseresnet", _pose)


def _pose(scale: Scale, model: str, method: str) -> TrainConfig:
    recipe = {"paper": recipes.pose_mpii, "desk": recipes.pose_lspet, "pocket": recipes.pose_pocket}[scale]
    config = recipe(model, method)
    config = replace(config, scaling=replace(config.scaling, apply="gradient"))
    return shortened(config, epochs=8, limit=300) if scale == "pocket" else config


POSE = Study(
    name="pose",
    title={"paper": "MSRA ResNet on MPII", "desk": "Pose ResNet on LSPe", "pocket": "Pose ResNet on drawn figures"},
    shows="Table 8",
    question="Does the gain carry over to human pose estimation, and does it come from the backbone or from "
    "fine-tuning?",
    arms=pose_arms,
    figures=("examples", "learning-curves", "scalings", "overhead"),
    metric={"paper": "pckh", "desk": "pck", "pocket": "pck"},
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": "The paper names Pytorch-Pose-HG-3D as its code and prints no settings. Those of that code are used, "
        "with these exceptions: images are resized with anti-aliasing, targets have subpixel precision, only annotated "
        "joints within the image count in the loss, and joints outside the image do not count in the metric. The "
        "optimizer is Adam, and SGS scales its gradient, as everywhere in the paper but for Adagrad*. "
        f"{PAPER_BACKBONE} {RUNS_UNKNOWN}",
        "desk": "Pose ResNet-18 at a quarter of its width on LSPe (128×128) in place of MPII, 40 epochs. The metric is "
        "PCK@0.2 of the torso instead of PCKh@0.5, so the values are not comparable with the paper's. "
        f"{DESK_BACKBONE}",
        "pocket": "Pose ResNet-18 at a quarter of its width on 300 figures drawn by the package (64×64). The metric "
        f"is PCK@0.2 of the torso instead of PCKh@0.5. {POCKET_BACKBONE}",
    },
    times=TIMES,
)
