"""How scalings are measured: in passes of their own, in the training's, and by autocorrelation."""

from __future__ import annotations

from spatialgrad.studies.own.controls import EPOCHS, at_length
from spatialgrad.studies.own.datasets import OWN
from spatialgrad.studies.paper.scales import DESK_VGG, FASHION, POCKET
from spatialgrad.studies.study import Arm, Scale, Study
from spatialgrad.train.config import with_values

WAYS: dict[str, dict[str, object]] = {
    "SGS": {},
    "live, every 5 epochs": {"scaling.live": True},
    "live, doubling": {"scaling.live": True, "scaling.schedule": "doubling"},
    "autocorrelation": {"method.name": "sgs-autocorrelation"},
}


def arms(scale: Scale) -> tuple[Arm, ...]:
    """Plain training, the paper's procedure, and other ways to measure."""
    group = {"Dataset": FASHION if scale == "pocket" else "CIFAR-100"}
    config = at_length(scale, "sgs", EPOCHS[scale])
    plain = Arm(group=group, label="Plain", config=at_length(scale, "baseline", EPOCHS[scale]), reference=True)
    return (
        plain,
        *(Arm(group=group, label=label, config=with_values(config, values)) for label, values in WAYS.items()),
    )


MEASUREMENT = Study(
    name="measurement",
    title={
        "paper": "VGG-11 on CIFAR-100, ways to measure",
        "desk": "VGG-11 on CIFAR-100, ways to measure",
        "pocket": f"VGG-11 on {FASHION}, ways to measure",
    },
    shows=OWN,
    question="Does it matter when and how scalings are measured?",
    arms=arms,
    figures=("gains", "learning-curves", "scalings"),
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": "The appendix' training, 200 epochs. Doubling: after 100, 200, 400, 800 and 1,600 steps, and then "
        "every 1,955 steps.",
        "desk": f"{DESK_VGG} 20,000 images, batch size 128, 60 epochs with cutout, learning rate 0.1, weight decay "
        "5e-4, single precision. Scalings updated every 5 epochs; doubling: after 100, 200, 400, 800 and 1,600 steps, "
        "and then every 1,955 steps.",
        "pocket": POCKET,
    },
    times={"paper": "about 15 GPU hours", "desk": "2 hours on 2 cores", "pocket": "2 minutes on 2 cores"},
)
