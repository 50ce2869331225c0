"""The appendix' tables of segmentation and human pose: backbones and fine-tuning, each with and without scaling.

The paper prints two of the four combinations: scaling in both trainings, and in neither. The other two tell where a
gain comes from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from spatialgrad.studies.paper.scales import PUBLISHED_SETTINGS, shortened
from spatialgrad.studies.study import Arm, Published, Scale, Study
from spatialgrad.train import recipes
from spatialgrad.train.config.groups import ModelConfig, TrainConfig

ARMS = {
    "Baseline": ("baseline", "baseline"),
    "SGS in pre-training": ("sgs", "baseline"),
    "SGS in fine-tuning": ("baseline", "sgs"),
    "SGS": ("sgs", "sgs"),
}
"""The methods of pre-training and of fine-tuning, by what an arm is called."""

SEGMENTATION_PUBLISHED = {
    "PSPNet-18": {"Baseline": (72.8, 80.0, 95.3), "SGS": (73.7, 81.1, 95.4)},
    "PSPNet-34": {"Baseline": (76.1, 84.0, 95.7), "SGS": (76.8, 84.3, 95.9)},
    "PSPNet-50": {"Baseline": (75.4, 82.8, 95.8), "SGS": (75.6, 82.8, 95.9)},
}
"""mIoU, mAcc and allAcc in per cent."""
POSE_PUBLISHED = {
    "MSRA ResNet-18": {"Baseline": 83.8, "SGS": 84.4},
    "MSRA ResNet-34": {"Baseline": 85.8, "SGS": 86.2},
    "MSRA ResNet-50": {"Baseline": 85.3, "SGS": 85.6},
}
"""PCKh@0.5 in per cent."""

BACKBONE_DIFFERENCES: dict[Scale, str] = {
    "desk": "Its backbone is pre-trained for 30 epochs on 20,000 images of CIFAR-100 in place of ImageNet.",
    "pocket": "Its backbone has seen 2,000 images of CIFAR-100 twice. A check that everything works, without any claim "
    "about accuracy.",
}

FineTuning = Callable[[Scale, str, str], TrainConfig]
"""The training of a network (`pspnet18`) with a method at a scale, without its backbone's weights."""


def segmentation_arms(scale: Scale) -> tuple[Arm, ...]:
    """PSPNets; one of them where there is no GPU."""
    published = {
        model: {label: _segmentation_row(*values) for label, values in rows.items()}
        for model, rows in SEGMENTATION_PUBLISHED.items()
    }
    return _arms(scale, published, "pspnet", _segmentation)


def pose_arms(scale: Scale) -> tuple[Arm, ...]:
    """Pose ResNets; one of them where there is no GPU."""
    published = {
        model: {label: Published(mean=mean) for label, mean in rows.items()} for model, rows in POSE_PUBLISHED.items()
    }
    return _arms(scale, published, "poseresnet", _pose)


def _arms(
    scale: Scale, published: dict[str, dict[str, Published]], family: str, fine_tuning: FineTuning
) -> tuple[Arm, ...]:
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
                backbone=backbones[first].key,
                note="" if label in published[model] else "beyond the paper",
            )
            for label, (first, second) in ARMS.items()
        ]
    return tuple(found)


def _pre_training(scale: Scale, model: str, method: str, width: float) -> TrainConfig:
    """The backbone's classification, on ImageNet or on what stands for it."""
    if scale == "paper":
        return recipes.imagenet(model, method)
    config = replace(recipes.desk(method), model=ModelConfig(name=model, width=width))
    if scale == "desk":
        return config
    config = shortened(config, epochs=2, limit=2000)
    return replace(config, data=replace(config.data, test_limit=500))


def _segmentation(scale: Scale, model: str, method: str) -> TrainConfig:
    if scale == "paper":
        return recipes.segmentation_cityscapes(model, method)
    config = (recipes.segmentation_camvid if scale == "desk" else recipes.segmentation_pocket)(method)
    # As the recipe has it for a backbone that is given.
    return replace(
        config,
        model=replace(config.model, name=model),
        optimizer=replace(config.optimizer, lr=0.01, head_factor=10.0),
    )


def _pose(scale: Scale, model: str, method: str) -> TrainConfig:
    recipe = {"paper": recipes.pose_mpii, "desk": recipes.pose_lspet, "pocket": recipes.pose_pocket}[scale]
    config = recipe(model, method)
    return shortened(config, epochs=8, limit=300) if scale == "pocket" else config


def _segmentation_row(miou: float, macc: float, allacc: float) -> Published:
    return Published(mean=miou, other={"macc": macc, "allacc": allacc})


SEGMENTATION = Study(
    name="segmentation",
    title="PSPNet on Cityscapes",
    shows="Table 7",
    question="Does the gain carry over to semantic segmentation, from the backbone or from fine-tuning?",
    arms=segmentation_arms,
    figures=("examples", "learning-curves", "scalings", "overhead"),
    metric="miou",
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": f"{PUBLISHED_SETTINGS} The paper does not say how many runs it averages.",
        "desk": "PSPNet-18 at a quarter of its width on CamVid, 240×180, in place of Cityscapes, 30 epochs. "
        f"{BACKBONE_DIFFERENCES['desk']}",
        "pocket": "PSPNet-18 at an eighth of its width on 64 frames of CamVid in place of Cityscapes. "
        f"{BACKBONE_DIFFERENCES['pocket']}",
    },
    times={
        "paper": "about 110 GPU days for the backbones alone",
        "desk": "a night on 2 cores",
        "pocket": "4 minutes on 2 cores",
    },
)

POSE = Study(
    name="pose",
    title="MSRA ResNet on MPII",
    shows="Table 8",
    question="Does the gain carry over to human pose estimation, from the backbone or from fine-tuning?",
    arms=pose_arms,
    figures=("examples", "learning-curves", "scalings", "overhead"),
    metric={"paper": "pckh", "desk": "pck", "pocket": "pck"},
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": f"{PUBLISHED_SETTINGS} The paper does not say how many runs it averages.",
        "desk": "Pose ResNet-18 at a quarter of its width on LSPe, 128×128, in place of MPII, 40 epochs; PCK@0.2 of "
        f"the torso in place of PCKh@0.5, not to be compared with the paper's. {BACKBONE_DIFFERENCES['desk']}",
        "pocket": "Pose ResNet-18 at a quarter of its width on 300 images of LSPe, 64×64, in place of MPII; PCK@0.2 of "
        f"the torso in place of PCKh@0.5. {BACKBONE_DIFFERENCES['pocket']}",
    },
    times={
        "paper": "about 110 GPU days for the backbones alone",
        "desk": "a night on 2 cores",
        "pocket": "4 minutes on 2 cores",
    },
)
