"""Figures 4 and 5: scalings over depth and time."""

from __future__ import annotations

from spatialgrad.studies.paper.scales import DESK, FASHION, POCKET, sized
from spatialgrad.studies.paper.table2_imagenet import resnet
from spatialgrad.studies.study import Arm, Scale, Study

VGG_LAYERS, RESNET_LAYERS = (0, 6, -1), (0, 7, -1)
"""The layers shown: first, seventh and last; first, eighth and last."""


def arms(scale: Scale) -> tuple[Arm, ...]:
    """VGG-16 on CIFAR-100 and ResNet-18 on ImageNet, or their stand-ins."""
    datasets = {
        "paper": ("CIFAR-100", "ImageNet"),
        "desk": ("CIFAR-100", "CIFAR-100 for ImageNet"),
        "pocket": (FASHION, "Fashion-MNIST for ImageNet"),
    }[scale]
    return (
        Arm(
            group={"Model": "VGG-16", "Dataset": datasets[0]},
            label="SGS (ours)",
            config=sized(scale, "vgg16", "sgs"),
            layers=VGG_LAYERS,
        ),
        Arm(
            group={"Model": "ResNet-18", "Dataset": datasets[1]},
            label="SGS (ours)",
            config=resnet(scale, "resnet18", "sgs"),
            layers=RESNET_LAYERS,
        ),
    )


LEARNED_SCALINGS = Study(
    name="learned-scalings",
    title="Scalings over depth and time",
    shows="Figures 4 and 5",
    question="What do the scalings of early and late layers look like at the start and at the end of training?",
    arms=arms,
    figures=("scalings", "learning-curves"),
    num_seeds={"paper": 1, "desk": 1, "pocket": 1},
    differences={
        "paper": "The published settings: the appendix' for VGG-16, Table 2's, with momentum 0.9, for ResNet-18.",
        "desk": f"A ResNet-18 for 32×32 images on CIFAR-100 in place of ImageNet. {DESK}",
        "pocket": POCKET,
    },
    times={"paper": "about 1 GPU hour and 5 GPU days", "desk": "an hour on 2 cores", "pocket": "2 minutes on 2 cores"},
)
