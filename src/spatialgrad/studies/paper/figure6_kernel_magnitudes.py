"""Figure 6: kernel magnitudes with and without scaling, and how similar they are to the scalings."""

from __future__ import annotations

from spatialgrad.studies.paper.figures4_5_learned_scalings import VGG_LAYERS, WHICH_VGG, vgg
from spatialgrad.studies.paper.scales import APPENDIX, BASELINE_AND_SGS, DESK, DESK_VGG, FASHION, POCKET
from spatialgrad.studies.study import Arm, Scale, Study


def arms(scale: Scale) -> tuple[Arm, ...]:
    """VGG-16, or VGG-11 at desk scale, with and without scaling."""
    found = []
    for label, method in BASELINE_AND_SGS.items():
        model, config = vgg(scale, method)
        found.append(
            Arm(
                group={"Model": model, "Dataset": FASHION if scale == "pocket" else "CIFAR-100"},
                label=label,
                config=config,
                reference=method == "baseline",
                layers=VGG_LAYERS,
            )
        )
    return tuple(found)


KERNEL_MAGNITUDES = Study(
    name="kernel-magnitudes",
    title="Kernel magnitudes with and without scaling",
    shows="Figure 6",
    question="Are weights larger where gradients were scaled up?",
    arms=arms,
    figures=("kernel-magnitudes", "kernel-similarity", "scalings", "learning-curves"),
    num_seeds={"paper": 1, "desk": 1, "pocket": 1},
    differences={
        "paper": f"{WHICH_VGG} {APPENDIX}",
        "desk": f"{DESK_VGG} It stands for VGG-16. {DESK}",
        "pocket": POCKET,
    },
    times={"paper": "about 2 GPU hours", "desk": "an hour on 2 cores", "pocket": "2 minutes on 2 cores"},
)
