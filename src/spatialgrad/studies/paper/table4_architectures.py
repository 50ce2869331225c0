"""Table 4: 17 architectures with and without scaling."""

from __future__ import annotations

from dataclasses import replace

from spatialgrad.studies.scales import (
    APPENDIX,
    BASELINE_AND_SGS,
    DESK,
    DESK_NETWORKS,
    DESK_VGG,
    POCKET,
    published_for,
    shortened,
    sized,
    titled,
)
from spatialgrad.studies.study import Arm, Published, Scale, Study
from spatialgrad.train.config import ModelConfig, TrainConfig

# Name in the table, name in the package, and the printed means and deviations: baseline, then SGS.
ROWS: tuple[tuple[str, str, tuple[float, float, float, float]], ...] = (
    ("VGG-11", "vgg11", (70.8, 0.1, 73.2, 0.1)),
    ("VGG-13", "vgg13", (74.7, 0.1, 76.1, 0.1)),
    ("VGG-16", "vgg16", (74.9, 0.1, 76.2, 0.1)),
    ("VGG-19", "vgg19", (74.6, 0.1, 76.1, 0.2)),
    ("ResNet-18", "resnet18", (77.8, 0.1, 78.8, 0.1)),
    ("ResNet-34", "resnet34", (79.0, 0.3, 80.0, 0.2)),
    ("ResNet-50", "resnet50", (79.1, 0.2, 79.6, 0.2)),
    ("ShuffleNet", "shufflenet", (72.4, 0.1, 72.8, 0.2)),
    ("MobileNetV2", "mobilenetv2", (73.9, 0.1, 74.2, 0.2)),
    ("SeResNet-18", "seresnet18", (78.4, 0.1, 79.6, 0.1)),
    ("SeResNet-34", "seresnet34", (79.3, 0.2, 80.3, 0.2)),
    ("PreActResNet-18", "preactresnet18", (75.7, 0.1, 76.3, 0.1)),
    ("PreActResNet-34", "preactresnet34", (77.4, 0.1, 77.9, 0.1)),
    ("PyramidNet (α=48)", "pyramidnet110-a48", (79.1, 0.1, 79.9, 0.2)),
    ("PyramidNet (α=84)", "pyramidnet110-a84", (81.1, 0.1, 81.6, 0.1)),
    ("PyramidNet (α=270)", "pyramidnet110-a270", (83.3, 0.1, 83.6, 0.1)),
    ("Xception", "xception", (79.0, 0.1, 80.0, 0.1)),
)
FRAGILE = ("preactresnet18", "preactresnet34")
FRAGILE_NOTE = (
    "No BatchNorm follows the last block: short trainings at learning rate 0.1 diverged within two epochs, even with a "
    "warm-up. Both arms of this row use a warm-up of one epoch and gradients clipped to norm 1."
)


def arms(scale: Scale) -> tuple[Arm, ...]:
    """Each network with and without scaling; at desk scale, those that fit in 30 epochs."""
    return tuple(
        Arm(
            group={"Model": shown},
            label=label,
            config=_config(scale, name, method),
            reference=method == "baseline",
            published=(Published(mean=mean, std=std),),
            published_for=published_for(scale, f"{shown} on CIFAR-100"),
            note=FRAGILE_NOTE if name in FRAGILE else "",
        )
        for shown, name, printed in ROWS
        if scale != "desk" or name in DESK_NETWORKS
        for (label, method), (mean, std) in zip(BASELINE_AND_SGS.items(), (printed[:2], printed[2:]), strict=True)
    )


def _config(scale: Scale, name: str, method: str) -> TrainConfig:
    config = sized(scale, name, method)
    if scale == "pocket":
        config = shortened(config, epochs=3, limit=1280)
        width = 0.25 if name in ("pyramidnet110-a48", "pyramidnet110-a84") else 0.125
        config = replace(
            config,
            model=ModelConfig(name=name, width=width),
            data=replace(config.data, batch_size=64, test_limit=500),
            scaling=replace(config.scaling, batches=1),
        )
    if name in FRAGILE:
        config = replace(
            config,
            optimizer=replace(config.optimizer, clip_norm=1.0),
            schedule=replace(config.schedule, warmup_epochs=1.0),
        )
    return config


ARCHITECTURES = Study(
    name="architectures",
    title={**titled("17 architectures"), "desk": "14 architectures on CIFAR-100"},
    shows="Table 4",
    question="Which networks gain from scaled gradients?",
    arms=arms,
    layout="columns",
    figures=("learning-curves", "scalings", "overhead"),
    published_seeds=3,
    num_seeds={"paper": 3, "desk": 1, "pocket": 1},
    differences={
        "paper": f"{APPENDIX} Unlike in the paper, both PreActResNets use a warm-up and clipped gradients.",
        "desk": f"VGG-13, 16 and 19 are left out: they are too deep to fit in 30 epochs. {DESK_VGG} Widths from 1/16 "
        f"to 1/2, so that each run takes less than an hour. {DESK}",
        "pocket": f"{POCKET} Here, 3 epochs on 1,280 images.",
    },
    times={"paper": "about 250 GPU hours", "desk": "a night on 2 cores", "pocket": "8 minutes on 2 cores"},
)
