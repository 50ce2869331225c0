"""Figure 6: kernel magnitudes with and without scaling."""

from __future__ import annotations

from spatialgrad.studies.paper.figures4_5_learned_scalings import VGG_LAYERS
from spatialgrad.studies.paper.scales import BASELINE_AND_SGS, DESK, FASHION, POCKET, PUBLISHED_SETTINGS, sized
from spatialgrad.studies.study import Arm, Scale, Study


def arms(scale: Scale) -> tuple[Arm, ...]:
    """VGG-16 with and without scaling."""
    return tuple(
        Arm(
            group={"Model": "VGG-16", "Dataset": FASHION if scale == "pocket" else "CIFAR-100"},
            label=label,
            config=sized(scale, "vgg16", method),
            reference=method == "baseline",
            layers=VGG_LAYERS,
        )
        for label, method in BASELINE_AND_SGS.items()
    )


KERNEL_MAGNITUDES = Study(
    name="kernel-magnitudes",
    title="Kernel magnitudes with and without scaling",
    shows="Figure 6",
    question="Are weights larger where gradients were scaled up?",
    arms=arms,
    figures=("kernel-magnitudes", "scalings", "learning-curves"),
    num_seeds={"paper": 1, "desk": 1, "pocket": 1},
    differences={"paper": PUBLISHED_SETTINGS, "desk": DESK, "pocket": POCKET},
    times={"paper": "about 2 GPU hours", "desk": "an hour on 2 cores", "pocket": "2 minutes on 2 cores"},
)
