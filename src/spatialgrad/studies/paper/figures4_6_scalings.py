"""Figures 4 to 6: scalings over depth and time, where they come from, and the kernel magnitudes beside them."""

from __future__ import annotations

from dataclasses import replace

from spatialgrad.studies.paper.table2_imagenet import resnet
from spatialgrad.studies.scales import (
    APPENDIX,
    BASELINE_AND_SGS,
    DESK,
    DESK_VGG,
    POCKET,
    TABLE_2,
    arms_of,
    on_cifar100,
    sized,
)
from spatialgrad.studies.study import Arm, Scale, Study
from spatialgrad.train.config import TrainConfig

VGG_LAYERS, RESNET_LAYERS = (0, 6, -1), (0, 7, -1)
"""The layers shown: first, seventh and last; first, eighth and last."""
WHICH_VGG = "The paper says neither which VGG-16 this is nor how it was trained: here as in its appendix."


def scaling_arms(scale: Scale) -> tuple[Arm, ...]:
    """VGG-16 on CIFAR-100 and ResNet-18 on ImageNet, or their stand-ins."""
    (model, config), of_resnet = vgg(scale, "sgs"), {"Dataset": "ImageNet"} if scale == "paper" else on_cifar100(scale)
    return (
        Arm(
            group={"Model": model, **on_cifar100(scale)},
            label="SGS (ours)",
            config=config,
            layers=VGG_LAYERS,
        ),
        Arm(
            group={"Model": "ResNet-18", **of_resnet},
            label="SGS (ours)",
            config=resnet(scale, "resnet18", "sgs"),
            layers=RESNET_LAYERS,
        ),
    )


def magnitude_arms(scale: Scale) -> tuple[Arm, ...]:
    """VGG-16, or VGG-11 at desk scale, with and without scaling."""
    configs = {label: vgg(scale, method)[1] for label, method in BASELINE_AND_SGS.items()}
    group = {"Model": vgg(scale, "sgs")[0], **on_cifar100(scale)}
    return tuple(replace(arm, layers=VGG_LAYERS) for arm in arms_of(group, configs))


def vgg(scale: Scale, method: str) -> tuple[str, TrainConfig]:
    """The VGG of Figures 4 and 6 and its name; at desk scale VGG-11, as VGG-16 is too deep for 30 epochs."""
    return ("VGG-11", sized(scale, "vgg11", method)) if scale == "desk" else ("VGG-16", sized(scale, "vgg16", method))


LEARNED_SCALINGS = Study(
    name="learned-scalings",
    title="Scalings over depth and time",
    shows="Figures 4 and 5",
    question="Are scalings more centre-focused in deeper layers, and how do they change during training?",
    arms=scaling_arms,
    figures=("scalings", "centre-share", "dependence", "learning-curves"),
    num_seeds={"paper": 1, "desk": 1, "pocket": 1},
    differences={
        "paper": f"VGG-16: {WHICH_VGG} {APPENDIX} ResNet-18: {TABLE_2}",
        "desk": f"{DESK_VGG} It stands for VGG-16. A ResNet-18 for 32×32 images, at an eighth of its width, on "
        f"CIFAR-100 stands for the one on ImageNet. {DESK}",
        "pocket": POCKET,
    },
    times={"paper": "about 1 GPU hour and 5 GPU days", "desk": "an hour on 2 cores", "pocket": "2 minutes on 2 cores"},
)

KERNEL_MAGNITUDES = Study(
    name="kernel-magnitudes",
    title="Kernel magnitudes with and without scaling",
    shows="Figure 6",
    question="Are weights larger where gradients were scaled up?",
    arms=magnitude_arms,
    figures=("kernel-magnitudes", "kernel-similarity", "scalings", "learning-curves"),
    num_seeds={"paper": 1, "desk": 1, "pocket": 1},
    differences={
        "paper": f"{WHICH_VGG} {APPENDIX}",
        "desk": f"{DESK_VGG} It stands for VGG-16. {DESK}",
        "pocket": POCKET,
    },
    times={"paper": "about 2 GPU hours", "desk": "an hour on 2 cores", "pocket": "2 minutes on 2 cores"},
)
