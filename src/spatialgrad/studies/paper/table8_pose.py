"""Table 8: pose ResNets on MPII, with and without scaling in pre-training and in fine-tuning."""

from __future__ import annotations

from dataclasses import replace

from spatialgrad.studies.paper.fine_tuning import (
    DESK_BACKBONE,
    PAPER_BACKBONE,
    POCKET_BACKBONE,
    TIMES,
    fine_tuning_arms,
)
from spatialgrad.studies.paper.scales import RUNS_UNKNOWN, shortened
from spatialgrad.studies.study import Arm, Published, Scale, Study
from spatialgrad.train import recipes
from spatialgrad.train.config import TrainConfig

PUBLISHED = {
    "MSRA ResNet-18": {"Baseline": Published(mean=83.8), "SGS": Published(mean=84.4)},
    "MSRA ResNet-34": {"Baseline": Published(mean=85.8), "SGS": Published(mean=86.2)},
    "MSRA ResNet-50": {"Baseline": Published(mean=85.3), "SGS": Published(mean=85.6)},
}


def arms(scale: Scale) -> tuple[Arm, ...]:
    """Three pose ResNets; one of them below the paper's scale."""
    return fine_tuning_arms(scale, PUBLISHED, "MPII", "poseresnet", _config)


def _config(scale: Scale, model: str, method: str) -> TrainConfig:
    recipe = {"paper": recipes.pose_mpii, "desk": recipes.pose_lspet, "pocket": recipes.pose_pocket}[scale]
    config = recipe(model, method)
    config = replace(config, scaling=replace(config.scaling, apply="gradient"))
    return shortened(config, epochs=8, limit=300) if scale == "pocket" else config


POSE = Study(
    name="pose",
    title={"paper": "MSRA ResNet on MPII", "desk": "Pose ResNet on LSPe", "pocket": "Pose ResNet on drawn figures"},
    shows="Table 8",
    question="Does the gain carry over to human pose estimation, and does it come from the backbone or from "
    "fine-tuning?",
    arms=arms,
    figures=("examples", "learning-curves", "scalings", "overhead"),
    metric={"paper": "pckh", "desk": "pck", "pocket": "pck"},
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": "The paper names Pytorch-Pose-HG-3D as its code and prints no settings. Those of that code are used, "
        "with these exceptions: images are resized with anti-aliasing, targets have subpixel precision, only annotated "
        "joints within the image count in the loss, and joints outside the image do not count in the metric. The "
        "optimizer is Adam, and SGS scales its gradient, as everywhere in the paper but for Adagrad*. "
        f"{PAPER_BACKBONE} {RUNS_UNKNOWN}",
        "desk": "Pose ResNet-18 at a quarter of its width on LSPe (128×128) in place of MPII, 40 epochs. The metric is "
        "PCK@0.2 of the torso instead of PCKh@0.5, so the values are not comparable with the paper's. "
        f"{DESK_BACKBONE}",
        "pocket": "Pose ResNet-18 at a quarter of its width on 300 figures drawn by the package (64×64). The metric "
        f"is PCK@0.2 of the torso instead of PCKh@0.5. {POCKET_BACKBONE}",
    },
    times=TIMES,
)
