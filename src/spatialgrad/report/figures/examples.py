"""Predictions beside the ground truth."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spatialgrad.report.figures.base import ArmExamples, PageFigure
from spatialgrad.report.results import StudyResults
from spatialgrad.train.run import EXAMPLES

MOST_EXAMPLES, MOST_ARMS = 3, 8


def examples(study: StudyResults, prefix: str) -> PageFigure | None:
    """A few examples of the first run of every arm that has any, embedded so that the page needs no other file."""
    found: list[ArmExamples] = []
    for arm in study.shown:
        run = next((run for run in arm.runs if run.examples and run.examples["examples"]), None)
        if run is not None and run.examples is not None and run.folder is not None and len(found) < MOST_ARMS:
            found.append(_embedded(f"{arm.name}, seed {run.seed}", run.examples, run.folder / EXAMPLES))
    if not found:
        return None
    number = sum(len(each.examples) for each in found)
    return PageFigure(
        name="examples",
        title="Examples",
        alt=f"{number} test images with ground truth and prediction: {', '.join(each.name for each in found)}.",
        caption="The same test images for every arm.",
        examples=tuple(found),
    )


def _embedded(name: str, index: Mapping[str, Any], folder: Path) -> ArmExamples:
    shown = [
        (
            each["caption"],
            tuple((image["title"], _data_uri(folder / Path(image["file"]).name)) for image in each["images"]),
        )
        for each in index["examples"][:MOST_EXAMPLES]
    ]
    legend = tuple((each["name"], each["colour"]) for each in index.get("legend", ()))
    return ArmExamples(name=name, examples=tuple(shown), legend=legend)


def _data_uri(path: Path) -> str:
    content = path.read_bytes() if path.is_file() else b""
    return "data:image/png;base64," + base64.b64encode(content).decode()
