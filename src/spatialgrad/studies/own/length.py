"""Does the gain grow with the length of the training?"""

from __future__ import annotations

from spatialgrad.studies.own.controls import at_length
from spatialgrad.studies.own.datasets import OWN, PLAIN_AND_SGS
from spatialgrad.studies.paper.scales import DESK_VGG, FASHION, POCKET
from spatialgrad.studies.study import Arm, Scale, Study

EPOCHS: dict[Scale, tuple[int, ...]] = {"paper": (50, 100, 200, 400), "desk": (60, 120, 240), "pocket": (2, 4, 8)}


def arms(scale: Scale) -> tuple[Arm, ...]:
    """Both methods for each number of epochs, the shortest first."""
    return tuple(
        Arm(
            group={"Epochs": str(epochs)},
            label=label,
            config=at_length(scale, method, epochs),
            reference=method == "baseline",
        )
        for epochs in EPOCHS[scale]
        for label, method in PLAIN_AND_SGS.items()
    )


LENGTH = Study(
    name="length",
    title={
        "paper": "VGG-11 on CIFAR-100, by length of training",
        "desk": "VGG-11 on CIFAR-100, by length of training",
        "pocket": f"VGG-11 on {FASHION}, by length of training",
    },
    shows=OWN,
    question="How does the gain depend on the length of the training, and on how well plain training fits?",
    arms=arms,
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
