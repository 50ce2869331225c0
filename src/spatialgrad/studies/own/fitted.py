"""Data sets and networks, each trained until plain training fits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spatialgrad.studies.own.datasets import OWN, PLAIN_AND_SGS
from spatialgrad.studies.paper.scales import DESK_VGG, FASHION, POCKET
from spatialgrad.studies.study import Arm, Scale, Study
from spatialgrad.train import recipes
from spatialgrad.train.config import DataConfig, ModelConfig, TrainConfig

LENGTHS = (60, 120, 240, 480)
"""Numbers of epochs that plain training tries, with seed 0 alone, until it fits: until its error on training images is
at most half of its error on test images, or the next length would take more than an hour on one core."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is trained at desk scale, beside the recipe."""

    dataset: str
    network: str = "VGG-11"
    data: DataConfig = recipes.desk().data
    model: ModelConfig = recipes.desk().model
    lr: float = 0.1
    tried: tuple[int, ...] = LENGTHS
    """Lengths that plain training has tried; both methods are compared at the last one."""


def _cifar100_with(network: str, model: ModelConfig, epochs: int) -> Setting:
    return Setting(dataset="CIFAR-100", network=network, model=model, tried=(epochs,))


SETTINGS = (
    Setting(
        dataset="Tiny-ImageNet, 20 classes",
        data=DataConfig(name="folder:tiny-imagenet-20.tar", image_size=64, batch_size=64, drop_last=True, cutout=0),
        lr=0.05,
    ),
    Setting(dataset="CIFAR-10", data=replace(recipes.desk().data, name="cifar10", limit=5_000)),
    Setting(
        dataset=FASHION,
        data=replace(recipes.desk().data, name="fashion-mnist", image_size=32, limit=5_000),
    ),
    _cifar100_with("VGG-11, half width", ModelConfig(name="vgg11-linear", width=0.5), 60),
    _cifar100_with("PreActResNet-18", ModelConfig(name="preactresnet18", width=0.125), 120),
)


def arms(scale: Scale) -> tuple[Arm, ...]:
    """Plain training at each length that was tried, and scaling at the last one."""
    settings: tuple[Setting, ...]
    if scale == "pocket":
        settings = (Setting(dataset=FASHION, data=recipes.pocket().data, model=recipes.pocket().model, tried=(2, 4)),)
    elif scale == "desk":
        settings = SETTINGS
    else:
        settings = tuple(_at_full_size(setting) for setting in SETTINGS)
    return tuple(
        Arm(
            group={
                "Dataset": setting.dataset,
                "Training images": "all" if setting.data.limit is None else f"{setting.data.limit:,}",
                "Network": setting.network,
                "Epochs": str(epochs),
            },
            label=label,
            config=_config(scale, setting, method, epochs),
            reference=method == "baseline",
        )
        for setting in settings
        for epochs in setting.tried
        for label, method in PLAIN_AND_SGS.items()
        if method == "baseline" or epochs == setting.tried[-1]
    )


def _at_full_size(setting: Setting) -> Setting:
    return replace(
        setting,
        network=setting.network.removesuffix(", half width"),
        data=replace(setting.data, limit=None),
        model=replace(setting.model, width=1.0),
    )


def _config(scale: Scale, setting: Setting, method: str, epochs: int) -> TrainConfig:
    config = {"paper": recipes.cifar_appendix(method=method), "desk": recipes.desk(method)}.get(scale)
    if config is None:
        config = recipes.pocket(method)
    else:
        config = replace(config, optimizer=replace(config.optimizer, lr=setting.lr))
    config = replace(config, data=setting.data, model=setting.model)
    return replace(config, budget=replace(config.budget, epochs=epochs, evaluate_every=min(epochs, 5)))


FITTED = Study(
    name="fitted",
    title="Trainings long enough to fit",
    shows=OWN,
    question="Does scaling help where plain training fits its training images?",
    arms=arms,
    figures=("gains", "learning-curves"),
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": "The appendix' training with all images of each data set and networks of full width.",
        "desk": f"{DESK_VGG} Learning rate 0.1 (Tiny-ImageNet: 0.05, batch size 64), weight decay 5e-4, scalings "
        "updated every 5 epochs, single precision. The length is the first of 60, 120, 240 and 480 epochs "
        "after which the error of plain training with seed 0 on training images is at most half of its error on test "
        "images, or the longest that takes at most an hour on one core.",
        "pocket": POCKET,
    },
    times={"paper": "a few GPU days", "desk": "20 hours on 2 cores", "pocket": "2 minutes on 2 cores"},
)
