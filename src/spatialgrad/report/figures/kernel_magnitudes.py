"""Mean kernel magnitudes with and without scaling, beside the scalings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from spatialgrad.report.figures.base import NO_DATA, PageFigure, no_data, speaking
from spatialgrad.report.figures.heatmap import HeatRow, heat_rows, scale_of
from spatialgrad.report.figures.layers import centre_of, evenly, published_layers
from spatialgrad.report.reading import matrix
from spatialgrad.report.results import ArmResults, RunResults, StudyResults
from spatialgrad.report.scalings_log import Matrix
from spatialgrad.train.errors import CheckpointError
from spatialgrad.train.run import Run

UNBRANCHED = ("baseline", "sgs", "sgs-autocorrelation", "sgs-static")
"""Methods whose checkpoints hold plain kernels; the others hold branches, which are not merged here."""


def kernel_magnitudes(study: StudyResults, prefix: str) -> PageFigure | None:
    """Mean |W| of the first, a middle and the last layer, with and without scaling, beside G."""
    found: list[tuple[str, str, list[Matrix | None]]] = []
    names: list[str] = []
    problems: list[str] = []
    unfinished: list[str] = []
    for arm in study.shown:
        run = run_with_weights(arm)
        if run is None:
            continue
        try:
            layers = magnitudes_of_run(run.folder)
        except CheckpointError as error:
            problems.append(str(error).replace(f"{study.folder}/", ""))
            continue
        if run.state != "finished":
            unfinished.append(f"{arm.name} ({run.epoch} of {run.epochs} epochs)")
        names = names or published_layers(arm, list(layers)) or evenly(list(layers), 3)
        found.append(("|W|", arm.name, [layers.get(name) for name in names]))
        if (update := run.scalings.last) is not None:
            found.append(("G", arm.name, [update.layers.get(name) for name in names]))
    title = "Kernel magnitudes with and without scaling"
    damaged = f" Omitted: {'; '.join(problems)}." if problems else ""
    under_way = f" Not fully trained: {'; '.join(unfinished)}." if unfinished else ""
    if not found:
        return no_data("kernel-magnitudes", title, f"{NO_DATA}{damaged}") if problems else None
    # Weights vary much less than factors do: each kind has its own colour scale.
    scales = {kind: scale_of(each for own, _, row in found if own == kind for each in row) for kind in ("|W|", "G")}
    rows = [HeatRow(title=f"{kind} {name}", matrices=row, largest=scales[kind]) for kind, name, row in found]
    svg, width = heat_rows(rows, names)
    spoken = [
        f"{kind} {name}, {layer}: centre {centre_of(each)}"
        for kind, name, row in found
        for layer, each in zip(names, row, strict=True)
    ]
    return PageFigure(
        name="kernel-magnitudes",
        title=title,
        alt=f"Heat maps of mean kernel magnitudes and scalings. {speaking(spoken)}.",
        caption="|W|: mean absolute weight over channels, divided by its mean over positions; G: scaling of the last "
        f"update. First, middle and last convolution; one seed; |W| and G have separate colour scales."
        f"{under_way}{damaged}",
        svg=svg,
        width=1.1 * width,
    )


def magnitudes_of_run(folder: Path | str) -> dict[str, Matrix | None]:
    """The kernel magnitude of every k×k convolution in the newest checkpoint of a run, by qualified name.

    Neither the data set nor the network is needed. Branches are not merged.

    Raises:
        CheckpointError: If the run has no readable checkpoint.
    """
    weights = Run.open(folder).checkpoint().get("model")
    if not isinstance(weights, Mapping):
        raise CheckpointError(f"the checkpoint in {folder} holds no weights")
    return {
        name.removesuffix(".weight"): matrix(kernel_magnitude(weight).tolist())
        for name, weight in weights.items()
        if isinstance(weight, Tensor)
        and str(name).endswith(".weight")
        and weight.dim() == 4
        and 0 not in weight.shape
        and weight[0, 0].numel() > 1
    }


def kernel_magnitude(weight: Tensor) -> Tensor:
    """The mean of |W| over output and input channels, divided by its mean over positions.

    Args:
        weight: Of a convolution: (output channels, input channels, *kernel size).

    Returns:
        One number per position, with mean 1; all 1 for a kernel of zeros.
    """
    magnitude = weight.detach().double().abs().mean(dim=(0, 1))
    mean = magnitude.mean()
    return magnitude / mean if mean > 0 else magnitude + 1


def run_with_weights(arm: ArmResults) -> RunResults | None:
    """The run of an arm whose checkpoint shows its kernels; None before it has started, and for branched networks."""
    if arm.record.config.method.name not in UNBRANCHED:
        return None
    return arm.newest if arm.newest is not None and arm.newest.state != "waiting" else None
