"""The paper's settings, as functions that return a config; use `dataclasses.replace` to change them.

The numbers are those of Detkov et al., ICLR 2023. Where the text and the authors' configuration disagree, the recipe
says so and takes the one that trains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from spatialgrad.train.config import (
    BudgetConfig,
    DataConfig,
    DyRepGroup,
    MethodConfig,
    ModelConfig,
    PoseConfig,
    ScalingConfig,
    SegmentationConfig,
    TrainConfig,
)
from spatialgrad.train.flags import check_name
from spatialgrad.train.optimizers import OptimizerConfig, ScheduleConfig

SGD = OptimizerConfig(name="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4)
COSINE = ScheduleConfig(name="cosine", min_lr=1e-6)
EVERY_5_EPOCHS = ScalingConfig(apply="gradient", k=5, warmup=1, every=5, batches=2)


def cifar_appendix(model: str = "vgg11", method: str = "sgs") -> TrainConfig:
    """Tables of the appendix: any network on CIFAR-100, 200 epochs, cutout; scalings every 5 epochs from 2 batches."""
    return TrainConfig(
        model=ModelConfig(name=model),
        data=DataConfig(name="cifar100", batch_size=128, drop_last=True, cutout=16),
        method=MethodConfig(name=method),
        optimizer=SGD,
        schedule=COSINE,
        scaling=EVERY_5_EPOCHS,
        budget=BudgetConfig(epochs=200),
    )


def cifar_table1(dataset: str = "cifar10", method: str = "sgs") -> TrainConfig:
    """Table 1: the slim VGG-16 on CIFAR-10 or CIFAR-100, 600 epochs; scalings every 30 epochs from 20 batches.

    Cutout, the final learning rate and dropping the last incomplete batch are not in the paper's text; they are in its
    authors' configuration.
    """
    config = cifar_appendix("vgg16-slim", method)
    return replace(
        config,
        data=replace(config.data, name=dataset),
        optimizer=replace(SGD, weight_decay=1e-4),
        scaling=replace(config.scaling, every=30, batches=20),
        dyrep=DyRepGroup(interval=15, until=500),
        budget=BudgetConfig(epochs=600),
    )


def ablation_search(method: str = "sgs") -> TrainConfig:
    """The ablation of search methods: VGG-11 on CIFAR-100, batch 512; scalings every 10 epochs from 2 batches.

    The paper says neither which VGG-11 nor whether it cuts out squares. This is the slim one and the cutout of its
    authors' CIFAR configuration.
    """
    config = cifar_appendix("vgg11-slim", method)
    return replace(config, data=replace(config.data, batch_size=512), scaling=replace(config.scaling, every=10))


def imagenet(model: str = "resnet18-imagenet", method: str = "sgs") -> TrainConfig:
    """Table 2: ResNets on ImageNet, 120 epochs, colour jitter; scalings without pairs of nearly equal pixels.

    The text of the paper says momentum 0.1; its authors' configuration has 0.9, and so does this recipe. From that
    configuration too: Nesterov momentum, no weight decay on biases and BatchNorm, colour jitter 0.06.
    """
    return TrainConfig(
        model=ModelConfig(name=model),
        data=DataConfig(name="imagenet", batch_size=256, drop_last=True, cutout=0),
        method=MethodConfig(name=method),
        optimizer=replace(SGD, nesterov=True, weight_decay=1e-4, decay_norms_and_biases=False),
        schedule=replace(COSINE, min_lr=1e-7),
        scaling=replace(EVERY_5_EPOCHS, drop_near=True),
        dyrep=DyRepGroup(interval=5, until=100),
        budget=BudgetConfig(epochs=120),
    )


def desk(method: str = "sgs") -> TrainConfig:
    """Without a GPU: VGG-11 with a linear classifier, a quarter of its width, 20,000 images of CIFAR-100, 30 epochs."""
    config = cifar_appendix("vgg11-linear", method)
    return replace(
        config,
        model=replace(config.model, width=0.25),
        data=replace(config.data, limit=20_000),
        dyrep=DyRepGroup(interval=5, until=25, batches=2),
        budget=BudgetConfig(epochs=30),
    )


def pocket(method: str = "sgs") -> TrainConfig:
    """In a minute: a narrow VGG-11 on the images that come with the package."""
    return TrainConfig(
        model=ModelConfig(name="vgg11", width=0.125),
        data=DataConfig(name="fashion-mnist-mini", batch_size=128, image_size=32, cutout=0),
        method=MethodConfig(name=method),
        optimizer=replace(SGD, lr=0.05),
        scaling=replace(EVERY_5_EPOCHS, every=2),
        dyrep=DyRepGroup(interval=2, until=None, batches=2),
        budget=BudgetConfig(epochs=8),
    )


def segmentation_cityscapes(model: str = "pspnet18", method: str = "sgs", backbone: Path | None = None) -> TrainConfig:
    """The segmentation table of the appendix: PSPNet on Cityscapes, fine-tuned from an ImageNet backbone.

    The paper takes its settings from SemSeg: 200 epochs of 713×713 crops in batches of 16, scaled by 0.5 to 2 and
    rotated by up to 10 degrees, a tenfold learning rate for the heads. It does not say how often scalings were
    measured; these are its settings for ImageNet.
    """
    return TrainConfig(
        task="segmentation",
        model=ModelConfig(name=model, backbone=backbone),
        data=DataConfig(name="cityscapes", batch_size=16, image_size=713, cutout=0),
        method=MethodConfig(name=method),
        optimizer=replace(SGD, lr=0.01, weight_decay=1e-4, head_factor=10),
        schedule=ScheduleConfig(name="poly", power=0.9),
        scaling=replace(EVERY_5_EPOCHS, drop_near=True),
        dyrep=DyRepGroup(interval=5, until=160),
        segmentation=SegmentationConfig(auxiliary=0.4, scale=(0.5, 2.0), rotation=10),
        budget=BudgetConfig(epochs=200, evaluate_every=10),
    )


def segmentation_camvid(method: str = "sgs", backbone: Path | None = None) -> TrainConfig:
    """Segmentation without a GPU: PSPNet-18 at a quarter of its width on CamVid, 30 epochs.

    With a backbone, the learning rates are those of `segmentation_cityscapes`; without one, the whole network has the
    same, higher learning rate.
    """
    lr, head_factor = (0.05, 1.0) if backbone is None else (0.01, 10.0)
    return TrainConfig(
        task="segmentation",
        model=ModelConfig(name="pspnet18", width=0.25, backbone=backbone),
        data=DataConfig(name="camvid", batch_size=8, cutout=0),
        method=MethodConfig(name=method),
        optimizer=replace(SGD, lr=lr, weight_decay=1e-4, head_factor=head_factor),
        schedule=ScheduleConfig(name="poly", power=0.9),
        scaling=EVERY_5_EPOCHS,
        dyrep=DyRepGroup(interval=5, until=25, batches=2),
        budget=BudgetConfig(epochs=30, evaluate_every=5),
    )


def segmentation_pocket(method: str = "sgs", backbone: Path | None = None) -> TrainConfig:
    """Segmentation in a minute: PSPNet-18 at an eighth of its width, on street scenes that the package draws."""
    config = segmentation_camvid(method, backbone)
    return replace(
        config,
        model=replace(config.model, width=0.125),
        data=replace(config.data, name="streets-mini"),
        scaling=replace(config.scaling, every=4),
        dyrep=replace(config.dyrep, interval=4, until=None),
        budget=replace(config.budget, epochs=12, evaluate_every=4),
    )


def pose_mpii(model: str = "poseresnet18", method: str = "sgs", backbone: Path | None = None) -> TrainConfig:
    """The table of human pose in the appendix: pose ResNets on MPII, fine-tuned from an ImageNet backbone.

    The paper takes its training from Pytorch-Pose-HG-3D: Adam without weight decay, learning rate 0.001, divided by 10
    after 90 and after 120 epochs, batch 32, evaluated on the mean of an image and its mirror image. It does not say
    how often scalings were measured; these are its settings for ImageNet.
    """
    return TrainConfig(
        task="pose",
        model=ModelConfig(name=model, backbone=backbone),
        data=DataConfig(name="mpii", batch_size=32, cutout=0),
        method=MethodConfig(name=method),
        optimizer=OptimizerConfig(name="adam", lr=1e-3, weight_decay=0.0),
        schedule=ScheduleConfig(name="step", milestones=(90, 120), gamma=0.1),
        scaling=replace(EVERY_5_EPOCHS, drop_near=True),
        dyrep=DyRepGroup(interval=5, until=100),
        budget=BudgetConfig(epochs=140, evaluate_every=5),
    )


def pose_lspet(model: str = "poseresnet18", method: str = "sgs", backbone: Path | None = None) -> TrainConfig:
    """Pose without a GPU: the pose ResNet at a quarter of its width on LSPe at 128×128, 40 epochs."""
    return TrainConfig(
        task="pose",
        model=ModelConfig(name=model, width=0.25, backbone=backbone),
        data=DataConfig(name="lspet", batch_size=16, image_size=128, cutout=0),
        method=MethodConfig(name=method),
        optimizer=OptimizerConfig(name="adam", lr=2e-3, weight_decay=0.0),
        schedule=ScheduleConfig(name="cosine", warmup_epochs=1),
        scaling=EVERY_5_EPOCHS,
        dyrep=DyRepGroup(interval=5, until=35, batches=2),
        budget=BudgetConfig(epochs=40, evaluate_every=5),
    )


def pose_pocket(model: str = "poseresnet18", method: str = "sgs", backbone: Path | None = None) -> TrainConfig:
    """Pose in minutes: the pose ResNet at a quarter of its width, on people that the package draws, at 64×64."""
    config = pose_lspet(model, method, backbone)
    return replace(
        config,
        data=replace(config.data, name="figures-mini", image_size=64),
        optimizer=replace(config.optimizer, lr=3e-3),
        pose=PoseConfig(scale=0.1, rotation=0.0),
        # With Adam, the paper's choice in `pose_lspet` has hardly any effect.
        scaling=replace(config.scaling, every=4, apply="auto"),
        dyrep=replace(config.dyrep, interval=4, until=None),
        budget=replace(config.budget, epochs=12, evaluate_every=4),
    )


RECIPES: dict[str, Callable[[], TrainConfig]] = {
    function.__name__: function
    for function in (
        cifar_table1,
        cifar_appendix,
        ablation_search,
        imagenet,
        desk,
        pocket,
        segmentation_cityscapes,
        segmentation_camvid,
        segmentation_pocket,
        pose_mpii,
        pose_lspet,
        pose_pocket,
    )
}
"""Every recipe by name."""


def recipe(name: str) -> TrainConfig:
    """The config of a recipe; its name may have hyphens instead of underscores.

    Raises:
        ConfigError: If there is no such recipe; the message suggests the closest name.
    """
    plain = name.replace("-", "_")
    check_name("recipe", plain, RECIPES)
    return RECIPES[plain]()
