"""Adam and AdamW: scaling of the gradient, which they undo, against scaling of the update; VGG-11 and a ConvNeXt."""

from __future__ import annotations

from dataclasses import replace

from spatialgrad.studies.scales import DESK_VGG, OWN, POCKET, arms_of, at_scale, titled
from spatialgrad.studies.study import Arm, Scale, Study
from spatialgrad.train import recipes
from spatialgrad.train.config import Apply, ModelConfig, TrainConfig
from spatialgrad.train.optimizers import OptimizerConfig

ADAM = OptimizerConfig(name="adam", lr=1e-3, weight_decay=5e-4)
ADAMW = OptimizerConfig(name="adamw", lr=1e-3, weight_decay=0.05, decay_norms_and_biases=False)
CONVNEXT = "ConvNeXt-Atto"
NETWORKS: dict[Scale, dict[str, ModelConfig]] = {
    "paper": {"VGG-16": ModelConfig(name="vgg16-slim"), CONVNEXT: ModelConfig(name="convnext-atto")},
    "desk": {
        "VGG-11": ModelConfig(name="vgg11-linear", width=0.25),
        CONVNEXT: ModelConfig(name="convnext-atto", width=0.5),
    },
    "pocket": {
        "VGG-11": ModelConfig(name="vgg11-linear", width=0.125),
        CONVNEXT: ModelConfig(name="convnext-atto", width=0.125),
    },
}
ARMS: dict[str, tuple[str, Apply]] = {
    "Plain": ("baseline", "gradient"),
    "SGS on the gradient": ("sgs", "gradient"),
    "SGS on the update": ("sgs", "update"),
}
"""The method of each arm, and what it scales."""


def arms(scale: Scale) -> tuple[Arm, ...]:
    """Plain training and both places of the scaling, for each network and optimizer."""
    vgg, convnext = NETWORKS[scale]
    return tuple(
        arm
        for network, name, optimizer in ((vgg, "Adam", ADAM), (vgg, "AdamW", ADAMW), (convnext, "AdamW", ADAMW))
        for arm in arms_of(
            {"Model": network, "Optimizer": name},
            {label: _config(scale, network, optimizer, *way) for label, way in ARMS.items()},
        )
    )


def _config(scale: Scale, network: str, optimizer: OptimizerConfig, method: str, apply: Apply) -> TrainConfig:
    config = at_scale(scale, method, recipes.cifar_appendix(method=method))
    return replace(
        config,
        model=NETWORKS[scale][network],
        optimizer=optimizer,
        schedule=replace(config.schedule, warmup_epochs=1.0),
        scaling=replace(config.scaling, apply=apply),
    )


ADAPTIVE = Study(
    name="adaptive",
    title=titled("Adam and AdamW"),
    shows=OWN,
    question="Does scaling help the optimizers and the networks of today, and where must it act?",
    arms=arms,
    figures=("gains", "learning-curves", "scalings", "overhead"),
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": "The appendix' training with the slim VGG-16 of Table 1 and ConvNeXt-Atto, 200 epochs. Learning rate "
        "0.001 after an epoch of warm-up; weight decay 5e-4 for Adam and, without biases and norms, 0.05 for AdamW.",
        "desk": f"{DESK_VGG} ConvNeXt-Atto at half its width. 20,000 training images, 30 epochs, scalings updated "
        "every 5 epochs. Learning rate 0.001 after an epoch of warm-up; weight decay 5e-4 for Adam and, without biases "
        "and norms, 0.05 for AdamW. Nothing is searched.",
        "pocket": POCKET,
    },
    times={"paper": "about 40 GPU hours", "desk": "4 hours on 2 cores", "pocket": "2 minutes on 2 cores"},
)
