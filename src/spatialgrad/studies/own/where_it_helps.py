"""When does scaling help? By kind of images, by numbers of images and steps, and by length of the training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from spatialgrad.studies.scales import (
    DESK_VGG,
    FASHION,
    OWN,
    PLAIN_AND_SGS,
    POCKET,
    arms_of,
    at_length,
    at_scale,
    titled,
)
from spatialgrad.studies.study import Arm, Scale, Study
from spatialgrad.train import recipes
from spatialgrad.train.config import DataConfig, ModelConfig, TrainConfig, with_values

DATASETS_AT_DESK: dict[str, dict[str, Any]] = {
    FASHION: {"data.name": "fashion-mnist", "data.image_size": 32, "data.cutout": 16, "data.limit": 20_000},
    "Tiny-ImageNet, 20 classes": {
        **{"data.name": "folder:tiny-imagenet-20.tar", "data.image_size": 64, "data.cutout": 0, "data.limit": None},
        **{"data.batch_size": 64, "optimizer.lr": 0.05},
    },
    "Imagenette-160, 8 classes": {
        **{"data.name": "folder:imagenette-160-mini.tar", "data.image_size": 96, "data.cutout": 0, "data.limit": None},
        **{"data.batch_size": 32, "optimizer.lr": 0.05, "budget.epochs": 60},
    },
}
"""What differs from the recipe. Fewer images are trained in smaller batches, so that the number of steps stays above a
thousand."""
IMAGES_THEMSELVES = ("data.name", "data.image_size", "data.cutout")
"""The fields that hold at the paper's scale as well."""


def datasets_arms(scale: Scale) -> tuple[Arm, ...]:
    """Both methods on each data set; at pocket scale on the shipped images alone."""
    names = (FASHION,) if scale == "pocket" else tuple(DATASETS_AT_DESK)
    return tuple(
        arm
        for name in names
        for arm in arms_of(
            {"Dataset": name}, {label: _on(scale, name, method) for label, method in PLAIN_AND_SGS.items()}
        )
    )


def _on(scale: Scale, dataset: str, method: str) -> TrainConfig:
    config = at_scale(scale, method, recipes.cifar_appendix("vgg16-slim", method))
    if scale == "pocket":
        return config
    values = DATASETS_AT_DESK[dataset]
    if scale == "paper":
        return with_values(config, {name: values[name] for name in IMAGES_THEMSELVES})
    # Evaluating Fashion-MNIST's 10,000 test images after every epoch would take a sixth of the time.
    return with_values(config, {**values, "budget.evaluate_every": 5})


DATASETS = Study(
    name="datasets",
    title={
        "paper": "VGG-16 on other images than CIFAR",
        "desk": "VGG-11 on other images than CIFAR",
        "pocket": f"VGG-11 on {FASHION}",
    },
    shows=OWN,
    question="On which images does scaling help?",
    arms=datasets_arms,
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


def regimes_arms(scale: Scale) -> tuple[Arm, ...]:
    """Both methods for each number of images and of steps, the shortest trainings first."""
    return tuple(
        arm
        for steps in STEPS[scale]
        for images in IMAGES[scale]
        for arm in arms_of(
            {"Training images": f"{images:,}", "Training steps": f"{steps:,}"},
            {label: _with_few(scale, images, steps, method) for label, method in PLAIN_AND_SGS.items()},
        )
    )


def _with_few(scale: Scale, images: int, steps: int, method: str) -> TrainConfig:
    config = at_scale(scale, method, recipes.cifar_appendix("vgg16-slim", method))
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
    arms=regimes_arms,
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

LENGTHS: dict[Scale, tuple[int, ...]] = {"paper": (50, 100, 200, 400), "desk": (60, 120, 240), "pocket": (2, 4, 8)}


def length_arms(scale: Scale) -> tuple[Arm, ...]:
    """Both methods for each number of epochs, the shortest first."""
    return tuple(
        arm
        for epochs in LENGTHS[scale]
        for arm in arms_of(
            {"Epochs": str(epochs)},
            {label: at_length(scale, method, epochs) for label, method in PLAIN_AND_SGS.items()},
        )
    )


LENGTH = Study(
    name="length",
    title=titled("VGG-11", ", by length of training"),
    shows=OWN,
    question="How does the gain depend on the length of the training, and on how well plain training fits?",
    arms=length_arms,
    figures=("gains", "learning-curves"),
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": "The appendix' training. The learning rate decays over the whole length.",
        "desk": f"{DESK_VGG} 20,000 images, batch size 128, cutout, learning rate 0.1 that decays over the whole "
        "length, weight decay 5e-4, scalings updated every 5 epochs, single precision.",
        "pocket": POCKET,
    },
    times={"paper": "about 30 GPU hours", "desk": "6 hours on 2 cores", "pocket": "2 minutes on 2 cores"},
)

TRIED = (60, 120, 240, 480)
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
    tried: tuple[int, ...] = TRIED
    """Lengths that plain training has tried; both methods are compared at the last one."""


SETTINGS = (
    Setting(
        dataset="Tiny-ImageNet, 20 classes",
        data=DataConfig(name="folder:tiny-imagenet-20.tar", image_size=64, batch_size=64, drop_last=True, cutout=0),
        lr=0.05,
    ),
    Setting(dataset="CIFAR-10", data=replace(recipes.desk().data, name="cifar10", limit=5_000)),
    Setting(dataset=FASHION, data=replace(recipes.desk().data, name="fashion-mnist", image_size=32, limit=5_000)),
    Setting(
        dataset="CIFAR-100",
        network="VGG-11, half width",
        model=ModelConfig(name="vgg11-linear", width=0.5),
        tried=(60,),
    ),
    Setting(
        dataset="CIFAR-100",
        network="PreActResNet-18",
        model=ModelConfig(name="preactresnet18", width=0.125),
        tried=(120,),
    ),
)


def fitted_arms(scale: Scale) -> tuple[Arm, ...]:
    """Plain training at each length that was tried, and scaling at the last one."""
    pocket = Setting(dataset=FASHION, data=recipes.pocket().data, model=recipes.pocket().model, tried=(2, 4))
    full_size = tuple(_at_full_size(setting) for setting in SETTINGS)
    return tuple(
        arm
        for setting in {"paper": full_size, "desk": SETTINGS, "pocket": (pocket,)}[scale]
        for epochs in setting.tried
        for arm in arms_of(
            {
                "Dataset": setting.dataset,
                "Training images": "all" if setting.data.limit is None else f"{setting.data.limit:,}",
                "Network": setting.network,
                "Epochs": str(epochs),
            },
            {
                label: _until_it_fits(scale, setting, method, epochs)
                for label, method in PLAIN_AND_SGS.items()
                if method == "baseline" or epochs == setting.tried[-1]
            },
        )
    )


def _at_full_size(setting: Setting) -> Setting:
    return replace(
        setting,
        network=setting.network.removesuffix(", half width"),
        data=replace(setting.data, limit=None),
        model=replace(setting.model, width=1.0),
    )


def _until_it_fits(scale: Scale, setting: Setting, method: str, epochs: int) -> TrainConfig:
    config = at_scale(scale, method, recipes.cifar_appendix(method=method))
    if scale != "pocket":
        config = replace(config, optimizer=replace(config.optimizer, lr=setting.lr))
    budget = replace(config.budget, epochs=epochs, evaluate_every=min(epochs, 5))
    return replace(config, data=setting.data, model=setting.model, budget=budget)


FITTED = Study(
    name="fitted",
    title="Trainings long enough to fit",
    shows=OWN,
    question="Does scaling help where plain training fits its training images?",
    arms=fitted_arms,
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
