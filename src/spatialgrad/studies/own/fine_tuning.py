"""Fine-tuning, as most users train: a classifier of many images goes on with a few images of other classes."""

from __future__ import annotations

from dataclasses import replace

from spatialgrad.studies.paper.tables7_8_fine_tuning import COMBINATIONS
from spatialgrad.studies.scales import DESK_VGG, FASHION, LONG, OWN, PLAIN_AND_SGS, POCKET, at_length, on_cifar100
from spatialgrad.studies.study import Arm, Scale, Study
from spatialgrad.train.config import TrainConfig

EPOCHS: dict[Scale, int] = {"paper": 100, "desk": 30, "pocket": 2}


def arms(scale: Scale) -> tuple[Arm, ...]:
    """Both pre-trainings, and their four combinations with both fine-tunings."""
    pre_trained = {
        method: Arm(
            group={**on_cifar100(scale), "Training": "pre-training"},
            label=label,
            config=at_length(scale, method, LONG[scale]),
            reference=method == "baseline",
            shown=False,
        )
        for label, method in PLAIN_AND_SGS.items()
    }
    group = {"Dataset": FASHION if scale == "pocket" else "CIFAR-10", "Training": "fine-tuning"}
    return (
        *pre_trained.values(),
        *(
            Arm(
                group=group,
                label=label,
                config=_fine_tuning(scale, second),
                reference=label == "Baseline",
                backbone=pre_trained[first].key,
            )
            for label, (first, second) in COMBINATIONS.items()
        ),
    )


def _fine_tuning(scale: Scale, method: str) -> TrainConfig:
    config = at_length(scale, method, EPOCHS[scale])
    name, limit = ("cifar10", 5_000) if scale != "pocket" else (config.data.name, 640)
    data = replace(config.data, name=name, limit=limit)
    return replace(config, data=data, optimizer=replace(config.optimizer, lr=config.optimizer.learning_rate / 10))


FINE_TUNING = Study(
    name="fine-tuning",
    title="VGG-11 fine-tuned on few images",
    shows=OWN,
    question="Does scaling help in fine-tuning, and does a network that was pre-trained with it transfer better?",
    arms=arms,
    figures=("gains", "learning-curves"),
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": "Pre-training on CIFAR-100 as in the appendix; fine-tuning on 5,000 images of CIFAR-10 for 100 epochs "
        "with a tenth of the learning rate; the classifier is new.",
        "desk": f"{DESK_VGG} Pre-training on 20,000 images of CIFAR-100 for 60 epochs, fine-tuning on 5,000 of "
        "CIFAR-10 for 30 with a tenth of the learning rate; the classifier is new. Single precision.",
        "pocket": POCKET,
    },
    times={"paper": "about 10 GPU hours", "desk": "2 hours on 2 cores", "pocket": "a minute on 2 cores"},
)
