"""Table 6: sensitivity to the number of epochs and the batch size."""

from __future__ import annotations

from dataclasses import replace

from spatialgrad.studies.paper.table5_optimizers import MODELS
from spatialgrad.studies.scales import (
    APPENDIX,
    BASELINE_AND_SGS,
    DESK_VGG,
    POCKET,
    desk_text,
    published_for,
    shortened,
    sized,
    titled,
)
from spatialgrad.studies.study import Arm, Published, Scale, Study
from spatialgrad.train.config import TrainConfig

# By epochs and batch size, the printed means and deviations: baseline, then SGS.
PUBLISHED: dict[str, dict[tuple[int, int], tuple[float, float, float, float]]] = {
    "VGG-11": {
        (100, 64): (70.4, 0.2, 71.1, 0.1),
        (100, 128): (70.8, 0.1, 72.5, 0.2),
        (100, 512): (68.8, 0.2, 70.8, 0.1),
        (200, 64): (71.0, 0.1, 72.4, 0.2),
        (200, 128): (70.8, 0.1, 73.2, 0.1),
        (200, 512): (68.6, 0.2, 71.6, 0.1),
        (600, 64): (71.0, 0.1, 73.0, 0.1),
        (600, 128): (70.1, 0.2, 73.2, 0.1),
        (600, 512): (68.2, 0.1, 71.3, 0.1),
    },
    "ResNet-18": {
        (100, 64): (77.5, 0.2, 78.1, 0.1),
        (100, 128): (77.5, 0.1, 78.0, 0.2),
        (100, 512): (75.2, 0.1, 75.6, 0.1),
        (200, 64): (77.8, 0.2, 78.4, 0.1),
        (200, 128): (77.8, 0.1, 78.8, 0.1),
        (200, 512): (76.2, 0.1, 76.7, 0.1),
        (600, 64): (78.0, 0.1, 78.7, 0.1),
        (600, 128): (77.9, 0.1, 79.0, 0.1),
        (600, 512): (76.4, 0.1, 77.2, 0.2),
    },
}
EPOCHS: dict[Scale, dict[int, int]] = {
    "paper": {100: 100, 200: 200, 600: 600},
    "desk": {100: 10, 200: 20, 600: 60},
    "pocket": {100: 2, 200: 3, 600: 6},
}
"""Number of epochs at each scale, by the paper's number."""


def arms(scale: Scale) -> tuple[Arm, ...]:
    """Two networks, three numbers of epochs and three batch sizes, with and without scaling."""
    return tuple(
        Arm(
            group={"Model": shown, "Epochs": str(EPOCHS[scale][epochs]), "Batch size": str(batch_size)},
            label=label,
            config=_config(scale, model, method, epochs, batch_size),
            reference=method == "baseline",
            published=(Published(mean=mean, std=std),),
            published_for=published_for(scale, f"{shown} on CIFAR-100, {epochs} epochs"),
        )
        for shown, model in MODELS.items()
        for (epochs, batch_size), printed in PUBLISHED[shown].items()
        for (label, method), (mean, std) in zip(BASELINE_AND_SGS.items(), (printed[:2], printed[2:]), strict=True)
    )


def _config(scale: Scale, model: str, method: str, epochs: int, batch_size: int) -> TrainConfig:
    config = shortened(sized(scale, model, method), epochs=EPOCHS[scale][epochs])
    if scale == "pocket":
        config = shortened(config, epochs=EPOCHS[scale][epochs], limit=1_024)
    return replace(config, data=replace(config.data, batch_size=batch_size))


SENSITIVITY = Study(
    name="sensitivity",
    title=titled("Epochs and batch sizes"),
    shows="Table 6",
    question="Does the gain depend on the number of epochs and the batch size?",
    arms=arms,
    layout="columns",
    figures=("learning-curves", "overhead"),
    published_seeds=3,
    num_seeds={"paper": 3, "desk": 1, "pocket": 1},
    differences={
        "paper": f"{APPENDIX} The learning rate is 0.1 for every batch size.",
        "desk": f"{DESK_VGG} {desk_text(batch='64, 128 or 512', epochs='10, 20 or 60')} These stand for 100, 200 and "
        "600 epochs.",
        "pocket": f"{POCKET} Here, 2, 3 and 6 epochs stand for 100, 200 and 600.",
    },
    times={"paper": "about 140 GPU hours", "desk": "8 hours on 2 cores", "pocket": "4 minutes on 2 cores"},
)
