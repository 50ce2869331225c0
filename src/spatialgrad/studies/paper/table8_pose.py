"""Table 8: pose ResNets on MPII, with and without scaling in pre-training and in fine-tuning."""

from __future__ import annotations

from spatialgrad.studies.paper.fine_tuning import DESK_BACKBONE, POCKET_BACKBONE, TIMES, fine_tuning_arms
from spatialgrad.studies.paper.scales import PUBLISHED_SETTINGS, shortened
from spatialgrad.studies.study import Arm, Published, Scale, Study
from spatialgrad.train import recipes
from spatialgrad.train.config.groups import TrainConfig

PUBLISHED = {
    "MSRA ResNet-18": {"Baseline": Published(mean=83.8), "SGS": Published(mean=84.4)},
    "MSRA ResNet-34": {"Baseline": Published(mean=85.8), "SGS": Published(mean=86.2)},
    "MSRA ResNet-50": {"Baseline": Published(mean=85.3), "SGS": Published(mean=85.6)},
}


def arms(scale: Scale) -> tuple[Arm, ...]:
    """Three pose ResNets; one of them below the paper's scale."""
    return fine_tuning_arms(scale, PUBLISHED, "poseresnet", _config)


def _config(scale: Scale, model: str, method: str) -> TrainConfig:
    recipe = {"paper": recipes.pose_mpii, "desk": recipes.pose_lspet, "pocket": recipes.pose_pocket}[scale]
    config = recipe(model, method)
    return shortened(config, epochs=8, limit=300) if scale == "pocket" else config


POSE = Study(
    name="pose",
    title="MSRA ResNet on MPII",
    shows="Table 8",
    question="Does the gain carry over to human pose estimation, and does it come from the backbone or from "
    "fine-tuning?",
    arms=arms,
    figures=("examples", "learning-curves", "scalings", "overhead"),
    metric={"paper": "pckh", "desk": "pck", "pocket": "pck"},
    num_seeds={"paper": 3, "desk": 3, "pocket": 1},
    differences={
        "paper": f"{PUBLISHED_SETTINGS} The paper does not state how many runs it averages.",
        "desk": "Pose ResNet-18 at a quarter of its width on LSPe (128×128) in place of MPII, 40 epochs. The metric is "
        "PCK@0.2 of the torso instead of PCKh@0.5, so the values are not comparable with the paper's. "
        f"{DESK_BACKBONE}",
        "pocket": "Pose ResNet-18 at a quarter of its width on 300 images of LSPe (64×64) in place of MPII. The metric "
        f"is PCK@0.2 of the torso instead of PCKh@0.5. {POCKET_BACKBONE}",
    },
    times=TIMES,
)
