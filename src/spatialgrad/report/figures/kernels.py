"""Weights beside scalings: mean kernel magnitudes with and without scaling, and their correlation with G."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from spatialgrad.plot import scaling_colours
from spatialgrad.report.figures.base import (
    NO_DATA,
    HeatRow,
    Key,
    PageFigure,
    colour,
    draw,
    draw_heat_rows,
    evenly,
    group_title,
    join_limited,
    no_data,
    series_of,
)
from spatialgrad.report.figures.scalings import MOST_ARMS, centre_of, published_layers
from spatialgrad.report.results import ArmResults, Matrix, RunResults, StudyResults
from spatialgrad.report.statistics import correlation
from spatialgrad.report.tables.cells import signed
from spatialgrad.train.errors import CheckpointError
from spatialgrad.train.run import Run

UNBRANCHED = ("baseline", "sgs", "sgs-autocorrelation", "sgs-static")
"""Methods whose checkpoints hold plain kernels; the others hold branches, which are not merged here."""

Correlations = dict[int, float]
"""By the layer's place, from 1."""


def kernel_magnitudes(study: StudyResults, prefix: str) -> PageFigure | None:
    """Mean |W| of the first, a middle and the last layer, with and without scaling, beside G."""
    found: list[tuple[str, str, list[Matrix | None]]] = []
    names, problems, unfinished = list[str](), list[str](), list[str]()
    for arm in study.shown:
        run = _run_with_weights(arm)
        if run is None:
            continue
        try:
            layers = magnitudes_of_run(run.open())
        except CheckpointError as error:
            problems.append(str(error).replace(f"{study.folder}/", ""))
            continue
        if run.state != "finished":
            unfinished.append(f"{arm.name} ({run.epoch} of {run.epochs} epochs)")
        names = names or published_layers(arm, list(layers)) or evenly(list(layers), 3)
        found.append(("|W|", arm.name, [layers.get(name) for name in names]))
        if run.has_scalings:
            last = run.scalings[-1].layers
            found.append(("G", arm.name, [last.get(name) for name in names]))
    title = "Kernel magnitudes with and without scaling"
    damaged = f" Omitted: {'; '.join(problems)}." if problems else ""
    under_way = f" Not fully trained: {'; '.join(unfinished)}." if unfinished else ""
    if not found:
        return no_data("kernel-magnitudes", title, f"{NO_DATA}{damaged}") if problems else None
    # Weights vary much less than factors do: each kind has its own colour scale.
    scales = {
        kind: scaling_colours(each for own, _, row in found if own == kind for each in row) for kind in ("|W|", "G")
    }
    rows = [
        HeatRow(title=f"{kind} {name}", matrices=row, norm=scales[kind][0], colours=scales[kind][1])
        for kind, name, row in found
    ]
    svg, width = draw_heat_rows(prefix, rows, names)
    described = [
        f"{kind} {name}, {layer}: centre {centre_of(each)}"
        for kind, name, row in found
        for layer, each in zip(names, row, strict=True)
    ]
    return PageFigure(
        name="kernel-magnitudes",
        title=title,
        alt=f"Heat maps of mean kernel magnitudes and scalings. {join_limited(described)}.",
        caption="|W|: mean absolute weight over channels, divided by its mean over positions; G: scaling of the last "
        f"update. First, middle and last convolution; one seed; |W| and G have separate colour scales."
        f"{under_way}{damaged}",
        svg=svg,
        width=width,
    )


def kernel_similarity(study: StudyResults, prefix: str) -> PageFigure | None:
    """Correlation of G and mean |W| over the positions of each kernel; the reference's weights are the control."""
    panels = [(arm, curves) for arm in study.shown if (curves := _curves(study, arm))][:MOST_ARMS]
    if not panels:
        return None
    series, described = series_of(study), []
    for arm, curves in panels:
        for other, curve in curves:
            mean = signed(sum(curve.values()) / len(curve))
            described.append(f"G of {arm.name} and |W| of {other.name}: mean {mean} over {len(curve)} layers")

    def paint(axes: Sequence[Any]) -> None:
        for ax, (arm, curves) in zip(axes, panels, strict=True):
            ax.set_title(group_title(arm.group))
            for other, curve in curves:
                style = "o-" if other is arm else "s--"
                ax.plot(list(curve), list(curve.values()), style, color=colour(series[other.label]), ms=4, lw=1.4)
            ax.axhline(0, color=colour(6), lw=1, ls=":")
            ax.set(ylim=(-1.05, 1.05), xlabel="layer", ylabel="correlation of G and |W|")
            ax.xaxis.get_major_locator().set_params(integer=True)

    size = (5.4, 2.8 * len(panels))
    labels = list(dict.fromkeys((other.label, other is not arm) for arm, curves in panels for other, _ in curves))
    return PageFigure(
        name="kernel-similarity",
        title="Similarity of scalings and final weights",
        alt=f"Correlations of G and mean |W| by layer. {join_limited(described)}.",
        caption="Pearson's correlation over the positions of a kernel, between G of the last update and the mean |W| "
        "of the newest checkpoint; 1: the same shape. Dashed: the weights of the reference, which was trained without "
        f"G. One seed. {join_limited(described)}.",
        svg=draw(prefix, size, (len(panels), 1), paint),
        width=72 * size[0],
        legend=tuple(
            Key(label=f"|W| of {label}", series=series[label], shape="dashed" if control else "line")
            for label, control in labels
        ),
    )


def magnitudes_of_run(run: Run) -> dict[str, Matrix]:
    """The kernel magnitude of every k×k convolution in the newest checkpoint of a run, by qualified name.

    Neither the data set nor the network is needed. Branches are not merged.

    Raises:
        CheckpointError: If the run has no readable checkpoint.
    """
    weights = run.checkpoint()["model"]
    return {
        name.removesuffix(".weight"): kernel_magnitude(weight).tolist()
        for name, weight in weights.items()
        if name.endswith(".weight") and weight.dim() == 4 and weight[0, 0].numel() > 1
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


def similarity(scalings: Mapping[str, Matrix], magnitudes: Mapping[str, Matrix]) -> Correlations:
    """The correlation of G and |W| of each layer, by its place; layers in which either is constant are left out."""
    found: Correlations = {}
    for place, (name, G) in enumerate(scalings.items(), 1):
        W = magnitudes.get(name)
        if W is None or (len(W), len(W[0])) != (len(G), len(G[0])):
            continue
        value = correlation([v for row in G for v in row], [v for row in W for v in row])
        if value is not None:
            found[place] = value
    return found


def _run_with_weights(arm: ArmResults) -> RunResults | None:
    """The run of an arm whose checkpoint shows its kernels; None before it has started, and for branched networks."""
    if arm.record.config.method.name not in UNBRANCHED or arm.newest is None:
        return None
    return arm.newest if arm.newest.folder is not None and arm.newest.open().has_checkpoint else None


def _curves(study: StudyResults, arm: ArmResults) -> list[tuple[ArmResults, Correlations]]:
    """For an arm with measured scalings: the similarity to its own weights, and to those of its reference."""
    own, reference = _run_with_weights(arm), study.reference(arm)
    if own is None or not own.has_scalings:
        return []
    last, found = own.scalings[-1].layers, []
    for other in (arm, reference):
        run = own if other is arm else _run_with_weights(other) if other is not None else None
        try:
            curve = similarity(last, magnitudes_of_run(run.open())) if run is not None else {}
        except CheckpointError:  # the figure of kernel magnitudes gives the reason
            continue
        if curve and other is not None:
            found.append((other, curve))
    return found
