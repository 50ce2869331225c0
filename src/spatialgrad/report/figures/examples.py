"""Predictions beside the ground truth."""

from __future__ import annotations

from dataclasses import replace

from spatialgrad.report.figures.base import PageFigure
from spatialgrad.report.results import StudyResults

MOST_EXAMPLES, MOST_ARMS = 3, 8


def examples(study: StudyResults, prefix: str) -> PageFigure | None:
    """A few examples of the first run of every arm that has any."""
    found = []
    for arm in study.shown:
        run = next((run for run in arm.runs if run.examples is not None and run.examples.examples), None)
        if run is not None and run.examples is not None:
            few = replace(run.examples, examples=run.examples.examples[:MOST_EXAMPLES])
            found.append((f"{arm.name}, seed {run.seed}", few))
    if not found:
        return None
    number = sum(len(each.examples) for _, each in found[:MOST_ARMS])
    names = ", ".join(name for name, _ in found[:MOST_ARMS])
    return PageFigure(
        name="examples",
        title="Examples",
        alt=f"{number} test images with ground truth and prediction: {names}.",
        caption="The same test images for every arm.",
        examples=tuple(found[:MOST_ARMS]),
    )
