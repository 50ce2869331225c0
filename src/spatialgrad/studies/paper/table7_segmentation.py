"""Table 7: PSPNet on Cityscapes, with and without scaling in pre-training and in fine-tuning."""

from __future__ import annotations

from dataclasses import replace

from spatialgrad.studies.paper.fine_tuning import (
    DESK_BACKBONE,
    PAPER_BACKBONE,
    POCKET_BACKBONE,
    TIMES,
    fine_tuning_arms,
)
from spatialgrad.studies.paper.scales import RUNS_UNKNOWN
from spatialgrad.studies.study import Arm, Published, Scale, Study
from spatialgrad.train import recipes
from spatialgrad.train.config import TrainConfig


def _row(miou: float, macc: float, allacc: float) -> Published:
    return Published(mean=miou, other={"macc": macc, "allacc": allacc})


PUBLISHED = {
    "PSPNet-18": {"Baseline": _row(72.8, 80.0, 95.3), "SGS": _row(73.7, 81.1, 95.4)},
    "PSPNet-34": {"Baseline": _row(76.1, 84.0, 95.7), "SGS": _row(76.8, 84.3, 95.9)},
    "PSPNet-50": {"Baseline": _row(75.4, 82.8, 95.8), "SGS": _row(75.6, 82.8, 95.9)},
}


def arms(scale: Scale) -> tuple[Arm, ...]:
    """Three PSPNets; one of them below the paper's scale."""
    return fine_tuning_arms(scale, PUBLISHED, "Cityscapes", "pspnet", _config)


def _config(scale: Scale, model: str, method: str) -> TrainConfig:
    if scale == "paper":
        return recipes.segmentation_cityscapes(model, method)
    config = (recipes.segmentation_camvid if scale == "desk" else recipes.segmentation_pocket)(method)
    # The recipe's learning rates are for a network without a pre-trained backbone.
    return replace(
        config,
        model=replace(config.model, name=model),
        optimizer=replace(config.optimizer, lr=0.01, head_factor=10.0),
    )


SEGMENTATION = Study(
    name="segmentation",
    title={"paper": "PSPNet on Cityscapes", "desk": "PSPNet on CamVid", "pocket": "PSPNet on drawn streets"},
    shows="Table 7",
    question="Does the gain carry over to semantic segmentation, and does it come from the backbone or from "
    "fine-tuning?",
    arms=arms,
    figures=("examples", "learning-curves", "scalings", "overhead"),
    metric="miou",
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": "The paper names SemSeg as its code and prints no settings. Those of SemSeg are used, with these "
        "exceptions: the stem is the 7×7 convolution of the ImageNet ResNets, the first block of a stage keeps the "
        "previous dilation, images are not blurred and are interpolated once, batch normalization stays within each "
        "process, whole images are evaluated in one pass instead of windows with their mirror images, and classes that "
        f"are absent from the images do not count. {PAPER_BACKBONE} {RUNS_UNKNOWN}",
        "desk": "PSPNet-18 at a quarter of its width on CamVid (240×180) in place of Cityscapes, 30 epochs. "
        f"{DESK_BACKBONE}",
        "pocket": f"PSPNet-18 at an eighth of its width on street scenes drawn by the package. {POCKET_BACKBONE}",
    },
    times=TIMES,
)
