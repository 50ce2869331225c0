"""Table 2: ResNets on ImageNet, against structural reparameterization."""

from __future__ import annotations

from dataclasses import replace

from spatialgrad.studies.paper.table1_cifar import QUOTED, ROWS
from spatialgrad.studies.scales import DESK, FASHION, POCKET, TABLE_2, published_for, shortened, sized
from spatialgrad.studies.study import Arm, Published, Scale, Study
from spatialgrad.train import recipes
from spatialgrad.train.config import ModelConfig, TrainConfig


def _row(
    mean: float, std: float | None, cost: float, macs: float, parameters: float, source: str = "paper"
) -> Published:
    """Cost in GPU days, multiply-accumulates in billions, parameters in millions."""
    return Published(
        mean=mean, std=std, cost=cost, macs=round(macs * 1e9), parameters=round(parameters * 1e6), source=source
    )


PUBLISHED: dict[str, dict[str, tuple[Published, ...]]] = {
    "ResNet-18": {
        "Origin": (_row(71.13, 0.04, 4.8, 1.81, 11.7),),
        "DBB": (_row(70.99, None, 8.1, 4.13, 26.3, QUOTED),),
        "DyRep": (_row(71.50, 0.03, 9.1, 2.92, 22.1), _row(71.58, None, 6.3, 2.42, 16.9, QUOTED)),
        "SGS (ours)": (_row(71.65, 0.05, 5.1, 1.81, 11.7),),
    },
    "ResNet-34": {
        "Origin": (_row(74.17, 0.05, 5.3, 3.66, 21.8),),
        "DBB": (_row(74.33, None, 12.8, 8.44, 49.9, QUOTED),),
        "DyRep": (_row(74.40, 0.03, 10.6, 4.95, 38.3), _row(74.68, None, 7.7, 4.72, 33.1, QUOTED)),
        "SGS (ours)": (_row(74.62, 0.05, 5.8, 3.66, 21.8),),
    },
    "ResNet-50": {
        "Origin": (_row(76.95, 0.05, 7.5, 4.09, 25.6),),
        "DBB": (_row(76.71, None, 13.7, 6.79, 40.7, QUOTED),),
        "DyRep": (_row(77.11, 0.03, 11.0, 5.84, 38.3), _row(77.08, None, 8.5, 5.05, 31.5, QUOTED)),
        "SGS (ours)": (_row(77.10, 0.01, 7.9, 4.09, 25.6),),
    },
}


def arms(scale: Scale) -> tuple[Arm, ...]:
    """The four methods with three networks."""
    return tuple(
        Arm(
            group={"Model": model},
            label=label,
            config=resnet(scale, model.lower().replace("-", ""), method),
            reference=label == "Origin",
            published=published,
            published_for=published_for(scale, f"{model} on ImageNet"),
        )
        for model, rows in PUBLISHED.items()
        for label, method in ROWS.items()
        for published in [rows[label]]
    )


def resnet(scale: Scale, name: str, method: str) -> TrainConfig:
    """A ResNet on ImageNet or its stand-in; at every scale, scalings are measured without pairs of near pixels."""
    if scale == "paper":
        return recipes.imagenet(f"{name}-imagenet", method)
    config = sized(scale, name, method)
    config = replace(config, scaling=replace(config.scaling, drop_near=True))
    if scale == "desk":
        return config
    # The paper's networks with their 7×7 stem, on images large enough to leave a few pixels in the last stage.
    config = shortened(config, epochs=4, limit=1000)
    return replace(
        config,
        model=ModelConfig(name=f"{name}-imagenet", width=0.125),
        data=replace(config.data, image_size=64, test_limit=500),
    )


IMAGENET = Study(
    name="imagenet",
    title={
        "paper": "ResNets on ImageNet",
        "desk": "ResNets on CIFAR-100",
        "pocket": f"ResNets on {FASHION}",
    },
    shows="Table 2",
    question="Does the gain hold for large images and for networks with a 7×7 convolution and shortcuts?",
    arms=arms,
    figures=("cost", "learning-curves", "scalings", "overhead"),
    cost_unit="GPU days",
    published_seeds=3,
    num_seeds={"paper": 3, "desk": 1, "pocket": 1},
    differences={
        "paper": f"{TABLE_2} DyRep grows every 5 epochs until epoch 100, as in its own configuration.",
        "desk": f"ResNets for 32×32 images at an eighth of their width on CIFAR-100 in place of ImageNet. {DESK}",
        "pocket": f"{POCKET} Here, 1,000 images padded with black to 64×64.",
    },
    times={"paper": "about 300 GPU days", "desk": "a night on 2 cores", "pocket": "3 minutes on 2 cores"},
)
