"""Why does scaling help? The measured G beside changed ones, and beside other ways to regularise plain training."""

from __future__ import annotations

from dataclasses import replace

from spatialgrad.studies.scales import DESK_VGG, LONG, OWN, POCKET, arms_of, at_length, on_cifar100, titled
from spatialgrad.studies.study import Arm, Scale, Study
from spatialgrad.train.config import flatten, to_dict, with_values

CHANGED_G = {
    "SGS, G shuffled": "shuffled",
    "SGS, neighbours shuffled": "neighbours-shuffled",
    "SGS, 1/G": "inverse",
    "SGS, one G for all layers": "shared",
}
"""The controls, and what each does to a measured G."""
FACTORS = {
    "learning rate × ½": ("optimizer.lr", 0.5),
    "learning rate × 2": ("optimizer.lr", 2),
    "weight decay × 2": ("optimizer.weight_decay", 2),
    "weight decay × 4": ("optimizer.weight_decay", 4),
}
"""What plain training is changed by: a field, and the factor on its value."""


def arms(scale: Scale) -> tuple[Arm, ...]:
    """Plain training first, with which all others are compared."""
    plain, sgs = at_length(scale, "baseline", LONG[scale]), at_length(scale, "sgs", LONG[scale])
    configs = {"Plain": plain, "SGS": sgs}
    configs |= {label: with_values(sgs, {"scaling.control": control}) for label, control in CHANGED_G.items()}
    values = flatten(to_dict(plain))
    for text, (field, factor) in FACTORS.items():
        configs[f"Plain, {text}"] = with_values(plain, {field: factor * values[field]})
    for label in ("Plain", "SGS"):
        configs[f"{label}, label smoothing"] = replace(configs[label], label_smoothing=0.1)
    return arms_of(on_cifar100(scale), configs)


CONTROLS = Study(
    name="controls",
    title=titled("VGG-11", ", controls"),
    shows=OWN,
    question="Does scaling help because of where the factors of G are, or does any change of the gradient regularise?",
    arms=arms,
    figures=("gains", "learning-curves", "scalings"),
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": "The appendix' training, 200 epochs. Shuffled factors keep their positions over all updates.",
        "desk": f"{DESK_VGG} 20,000 images, batch size 128, 60 epochs with cutout, learning rate 0.1, weight decay "
        "5e-4, scalings updated every 5 epochs, single precision. Shuffled factors keep their positions over "
        "all updates.",
        "pocket": POCKET,
    },
    times={"paper": "about 40 GPU hours", "desk": "5 hours on 2 cores", "pocket": "3 minutes on 2 cores"},
)
