"""Scaling beside its rivals for the same number of epochs: accuracy, cost, and what is left of it in INT8."""

from __future__ import annotations

from spatialgrad.studies.scales import DESK_VGG, LONG, OWN, POCKET, at_length, on_cifar100, titled
from spatialgrad.studies.study import Arm, Scale, Study
from spatialgrad.train.config import TrainConfig, with_values

ARMS = {
    "Plain": "baseline",
    "SGS": "sgs",
    "ACB": "acb",
    "RepVGG": "repvgg",
    "QARepVGG": "qarepvgg",
    "DBB": "dbb",
    "DyRep": "dyrep",
    "RepOpt": "repopt",
    "SGS from RepOpt's weights": "sgs",
}
"""The arms, and the method of each."""
SEARCH = "RepOpt's search"
SEARCH_SHARE = 3
"""RepOpt's search takes one epoch in so many."""
AFTER_SEARCH = ("RepOpt", "SGS from RepOpt's weights")
"""The arms that start from the scales of a search, whose time counts as theirs."""


def arms(scale: Scale) -> tuple[Arm, ...]:
    """All methods, after the search that some of them start from."""
    group, epochs = on_cifar100(scale), max(2, LONG[scale] // SEARCH_SHARE)
    search = Arm(group=group, label=SEARCH, config=at_length(scale, "repopt-search", epochs), shown=False)
    methods = (
        Arm(
            group=group,
            label=label,
            config=_config(scale, method),
            reference=label == "Plain",
            backbone=search.key if label in AFTER_SEARCH else None,
            pays_for_backbone=label in AFTER_SEARCH,
        )
        for label, method in ARMS.items()
    )
    return (search, *methods)


def _config(scale: Scale, method: str) -> TrainConfig:
    config = with_values(at_length(scale, method, LONG[scale]), {"budget.int8": True})
    if method == "dyrep" and scale == "desk":
        # The recipe is for half of the epochs: branches grow as often, until the same share of the training.
        config = with_values(config, {"dyrep.interval": 10, "dyrep.until": 50})
    return config


QUANTIZATION = Study(
    name="quantization",
    title=titled("VGG-11", ", all methods in float and INT8"),
    shows=OWN,
    question="Which method gives the best network, what does it cost, and how much of it is left in INT8?",
    arms=arms,
    figures=("int8", "cost", "gains", "learning-curves", "overhead"),
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": "The appendix' training, 200 epochs. RepOpt's search takes a third of the epochs, on the same images, "
        "and its time counts; its authors search with a recipe of their own. INT8 by onnxruntime, calibrated on 512 "
        "training images.",
        "desk": f"{DESK_VGG} 20,000 images, batch size 128, 60 epochs with cutout, learning rate 0.1, weight decay "
        "5e-4, scalings updated every 5 epochs, DyRep's branches every 10 until epoch 50, single precision. RepOpt's "
        "search takes 20 epochs on the same images, and its time counts. INT8 by onnxruntime, calibrated on 512 "
        "training images.",
        "pocket": POCKET,
    },
    times={"paper": "about 50 GPU hours", "desk": "12 hours on 2 cores", "pocket": "5 minutes on 2 cores"},
)
