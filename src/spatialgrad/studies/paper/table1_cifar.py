"""Table 1: VGG-16 on CIFAR-10 and CIFAR-100, against structural reparameterization."""

from __future__ import annotations

from dataclasses import replace

from spatialgrad.studies.scales import DESK, DESK_VGG, FASHION, POCKET, TABLE_1, at_scale, published_for
from spatialgrad.studies.study import Arm, Published, Scale, Study
from spatialgrad.train import recipes
from spatialgrad.train.config import TrainConfig

ROWS = {"Origin": "baseline", "DBB": "dbb", "DyRep": "dyrep", "SGS (ours)": "sgs"}
"""The rows of the table, and the training method of each."""
QUOTED = "Huang et al. 2022 (DyRep)"
"""Source of the paper's starred rows."""


def _row(mean: float, std: float, cost: float, macs: float, parameters: float, source: str = "paper") -> Published:
    """Cost in GPU hours, multiply-accumulates and parameters in millions."""
    return Published(mean=mean, std=std, cost=cost, macs=macs * 1e6, parameters=round(parameters * 1e6), source=source)


PUBLISHED: dict[str, dict[str, tuple[Published, ...]]] = {
    "CIFAR-10": {
        "Origin": (_row(94.90, 0.07, 2.3, 313, 15),),
        "DBB": (_row(95.00, 0.1, 7.0, 728, 34.7), _row(94.97, 0.06, 9.4, 728, 34.7, QUOTED)),
        "DyRep": (_row(95.00, 0.06, 7.2, 674, 25.5), _row(95.22, 0.13, 6.9, 597, 26.4, QUOTED)),
        "SGS (ours)": (_row(95.20, 0.05, 2.5, 313, 15),),
    },
    "CIFAR-100": {
        "Origin": (_row(73.70, 0.1, 2.3, 314, 15),),
        "DBB": (_row(74.40, 0.1, 7.0, 728, 34.7), _row(74.04, 0.08, 9.4, 728, 34.7, QUOTED)),
        "DyRep": (_row(74.10, 0.2, 6.4, 560, 22.8), _row(74.37, 0.11, 6.7, 582, 27.1, QUOTED)),
        "SGS (ours)": (_row(75.50, 0.1, 2.5, 313, 15),),
    },
}


def arms(scale: Scale) -> tuple[Arm, ...]:
    """The four methods on both data sets, or on one at pocket scale."""
    datasets = {FASHION: "CIFAR-100"} if scale == "pocket" else {name: name for name in PUBLISHED}
    return tuple(
        Arm(
            group={"Dataset": shown},
            label=label,
            config=_config(scale, name, method),
            reference=label == "Origin",
            published=PUBLISHED[name][label],
            published_for=published_for(scale, f"VGG-16 on {name}"),
        )
        for shown, name in datasets.items()
        for label, method in ROWS.items()
    )


def _config(scale: Scale, dataset: str, method: str) -> TrainConfig:
    name = dataset.lower().replace("-", "")
    config = at_scale(scale, method, recipes.cifar_table1(name, method))
    return config if scale == "pocket" else replace(config, data=replace(config.data, name=name))


CIFAR = Study(
    name="cifar",
    title={
        "paper": "VGG-16 on CIFAR-10 and CIFAR-100",
        "desk": "VGG-11 on CIFAR-10 and CIFAR-100",
        "pocket": f"VGG-11 on {FASHION}",
    },
    shows="Table 1",
    question="Does gradient scaling match the accuracy of branches at the cost of a plain network?",
    arms=arms,
    figures=("cost", "learning-curves", "scalings", "overhead"),
    cost_unit="GPU hours",
    published_seeds=5,
    num_seeds={"paper": 5, "desk": 3, "pocket": 2},
    differences={
        "paper": f"{TABLE_1} DBB and DyRep have the settings of DyRep's configuration: DyRep grows every 15 epochs "
        "until epoch 500.",
        "desk": f"{DESK_VGG} It stands for VGG-16, which is too deep for so few epochs. {DESK}",
        "pocket": f"VGG-11 at an eighth of its width in place of VGG-16. {POCKET}",
    },
    times={"paper": "about 190 GPU hours", "desk": "7 hours on 2 cores", "pocket": "6 minutes on 2 cores"},
)
