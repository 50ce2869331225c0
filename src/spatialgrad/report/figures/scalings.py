"""G over depth and time, and the kernels that grow under it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from spatialgrad.report.figures.base import NO_DATA, Figure, speaking
from spatialgrad.report.figures.heatmap import HeatRow, heat_rows, scale_of
from spatialgrad.report.load import Arm, Collected, Matrix, Run
from spatialgrad.report.reading import matrix
from spatialgrad.train.errors import CheckpointError

MOST_UPDATES, MOST_RUNS, MOST_ARMS, MOST_LAYERS = 12, 24, 4, 35


def scalings(study: Collected, prefix: str) -> Figure | None:
    """Every layer's G over depth and time: an overview to print, and all updates to choose from."""
    by_seed = [(place, arm, run) for arm in study.shown for place, run in enumerate(arm.runs) if run.scalings]
    # One seed of every arm before a second one of any.
    shown = [(arm, run) for _, arm, run in sorted(by_seed, key=lambda each: each[0])]
    if not shown:
        return None
    parts, spoken, width = [], [], 0.0
    overviews = list({arm.record.key: (arm, run) for arm, run in reversed(shown)}.values())[::-1][:MOST_ARMS]
    for arm, run in overviews:
        svg, own, said = _overview(arm, run)
        title = escape(f"{arm.name}, seed {run.seed}")
        parts.append(f'<p class="drawing-title">{title}</p>{svg}')
        spoken += said
        width = max(width, own)
    few = "" if len({arm.record.key for arm, _ in shown}) <= MOST_ARMS else f" The first {MOST_ARMS} arms."
    bold = " Bold: the layers that the paper shows." if any(arm.record.layers for arm, _ in overviews) else ""
    return Figure(
        name="scalings",
        title="Scalings over depth and time",
        alt=f"Heat maps of the factor on the gradient. Centre of the kernel: {speaking(spoken)}.",
        caption=f"Layers from first to last, one seed per arm.{few}{bold} 1 (nearly white) leaves the gradient as it "
        "is; blue slows a position down, red speeds it up. Every matrix has mean 1.",
        svg="".join(parts),
        width=width,
        data={
            "id": prefix,
            "runs": [_data(*each) for each in shown[:MOST_RUNS]],
            "left": max(0, len(shown) - MOST_RUNS),
        },
    )


def _overview(arm: Arm, run: Run) -> tuple[str, float, list[str]]:
    first, last = run.scalings[0], run.scalings[-1]
    updates = {id(each): each for each in (first, run.scalings[(len(run.scalings) - 1) // 2], last)}.values()
    names = _chosen(list(last.layers), MOST_LAYERS)
    largest = scale_of(G for update in updates for G in update.layers.values())
    rows = [
        HeatRow(title=f"after epoch {each.epoch}", matrices=[each.layers.get(name) for name in names], largest=largest)
        for each in updates
    ]
    svg, width = heat_rows(rows, names, bold=_published_layers(arm, list(last.layers)))
    said = [
        f"{arm.name}, {name}: {_centre(first.layers.get(name))} at first, {_centre(last.layers.get(name))} at last"
        for name in _published_layers(arm, list(last.layers)) or _chosen(list(last.layers), 3)
    ]
    return svg, width, said


def kernel_magnitudes(study: Collected, prefix: str) -> Figure | None:
    """Mean |W| of the first, a middle and the last layer, with and without scaling, beside G."""
    from spatialgrad.report.magnitudes import kernel_magnitudes_of_run

    found: list[tuple[str, str, list[Matrix | None]]] = []
    names: list[str] = []
    problems: list[str] = []
    unfinished: list[str] = []
    for arm in study.shown:
        run = _first_with_weights(arm)
        if run is None:
            continue
        try:
            layers = {name: matrix(values) for name, values in kernel_magnitudes_of_run(run.folder).items()}
        except CheckpointError as error:
            problems.append(str(error).replace(f"{study.folder}/", ""))
            continue
        if run.state != "finished":
            unfinished.append(f"{arm.name} ({run.epoch} of {run.epochs} epochs)")
        names = names or _published_layers(arm, list(layers)) or _chosen(list(layers), 3)
        found.append(("|W|", arm.name, [layers.get(name) for name in names]))
        if run.scalings:
            found.append(("G", arm.name, [run.scalings[-1].layers.get(name) for name in names]))
    title = "Kernel magnitudes, with and without scaling"
    damaged = f" Left out: {'; '.join(problems)}." if problems else ""
    under_way = f" Not trained to the end: {'; '.join(unfinished)}." if unfinished else ""
    if not found:
        empty = Figure(name="kernel-magnitudes", title=title, alt=f"{title}: {NO_DATA}.{damaged}", caption=damaged)
        return empty if problems else None
    # Weights differ much less than factors do: each has a scale of colours of its own.
    scales = {kind: scale_of(each for own, _, row in found if own == kind for each in row) for kind in ("|W|", "G")}
    rows = [HeatRow(title=f"{kind} {name}", matrices=row, largest=scales[kind]) for kind, name, row in found]
    svg, width = heat_rows(rows, names)
    spoken = [
        f"{kind} {name}, {layer}: centre {_centre(each)}"
        for kind, name, row in found
        for layer, each in zip(names, row, strict=True)
    ]
    return Figure(
        name="kernel-magnitudes",
        title=title,
        alt=f"Heat maps of mean kernel magnitudes and scalings. {speaking(spoken)}.",
        caption="|W|: mean of the absolute weights over channels, divided by its own mean; G: scaling of the last "
        f"update. First, middle and last convolution; one seed; |W| and G have their own scales of colours."
        f"{under_way}{damaged}",
        svg=svg,
        width=1.1 * width,
    )


def _data(arm: Arm, run: Run) -> dict[str, Any]:
    updates = _chosen(list(run.scalings), MOST_UPDATES)
    layers = list(updates[-1].layers)
    return {
        "arm": arm.name,
        "seed": run.seed,
        "layers": layers,
        "epochs": [update.epoch for update in updates],
        "updates": len(run.scalings),
        "G": [[_rounded(update.layers.get(name)) for name in layers] for update in updates],
    }


def _published_layers(arm: Arm, layers: list[str]) -> list[str]:
    there = [index for index in arm.record.layers if -len(layers) <= index < len(layers)]
    return list(dict.fromkeys(layers[index] for index in there))


def _first_with_weights(arm: Arm) -> Run | None:
    # Branches are not merged in a checkpoint: what deserves the name of kernel there is a part of it only.
    if str(_method(arm)) not in ("baseline", "sgs", "sgs-autocorrelation", "sgs-static"):
        return None
    return arm.newest if arm.newest is not None and arm.newest.state != "waiting" else None


def _method(arm: Arm) -> Any:
    method = arm.record.config.get("method")
    return method.get("name") if isinstance(method, dict) else None


def _chosen(values: list[Any], most: int) -> list[Any]:
    """The first, the last, and some evenly in between."""
    if len(values) <= most:
        return values
    return [values[round(index * (len(values) - 1) / (most - 1))] for index in range(most)]


def _rounded(G: Matrix | None) -> Sequence[Sequence[float]] | None:
    return None if G is None else [[round(value, 2) for value in row] for row in G]


def _centre(G: Matrix | None) -> str:
    return "unknown" if G is None else f"{G[len(G) // 2][len(G[0]) // 2]:.2f}"
