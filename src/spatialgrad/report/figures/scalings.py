"""G and S over depth and time: the matrices, the share of the centre, and S over distance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from spatialgrad.plot import centre_share, scaling_colours
from spatialgrad.report.figures.base import (
    HeatRow,
    Key,
    PageFigure,
    colour,
    draw,
    draw_heat_rows,
    evenly,
    join_limited,
    plain,
)
from spatialgrad.report.results import ArmResults, Matrix, RunResults, Scalings, StudyResults
from spatialgrad.report.statistics import rank_correlation
from spatialgrad.report.tables.cells import signed

MOST_ARMS, MOST_UPDATES, MOST_RUNS, MOST_LAYERS = 4, 12, 24, 35
THIRDS = ("early layers", "middle layers", "late layers")
NEIGHBOURS = {1.0: 0, math.sqrt(2): 1}
"""Distances of the eight neighbours, and the colour index of each."""
SMALLEST_CHANGE = 0.05
"""Changes of the mean share below this many points are called none."""

T = TypeVar("T")


def scalings(study: StudyResults, prefix: str) -> PageFigure | None:
    """G of every layer over depth and time: an overview to print, and all updates to choose from."""
    shown = _runs_by_seed(study)
    if not shown:
        return None
    overviews = _one_per_arm(shown)
    parts, described, width = [], list[str](), 0.0
    for number, (arm, run) in enumerate(overviews):
        updates = run.scalings
        first, last = updates[0], updates[-1]
        svg, own = _overview(f"{prefix}-{number}", arm, run.seed, updates)
        parts.append(svg)
        width = max(width, own)
        for name in published_layers(arm, list(last.layers)) or evenly(list(last.layers), 3):
            both = dict.fromkeys(
                f"{centre_of(each.layers.get(name))} after epoch {each.epoch}" for each in (first, last)
            )
            described.append(f"{arm.name}, {name}: {', '.join(both)}")
    few = "" if len({arm.record.key for arm, _ in shown}) <= MOST_ARMS else f" Only the first {MOST_ARMS} arms."
    bold = " Bold: the layers shown in the paper." if any(arm.record.layers for arm, _ in overviews) else ""
    return PageFigure(
        name="scalings",
        title="Scalings over depth and time",
        alt=f"Heat maps of the factor on the gradient. Centre of the kernel: {join_limited(described)}.",
        caption=f"Layers from first to last, one seed per arm.{few}{bold} 1 (nearly white) leaves the gradient "
        "unchanged; blue is smaller, red is larger. Every matrix has mean 1.",
        svg="".join(parts),
        width=width,
        data={
            "id": prefix,
            "runs": [_data(arm, run) for arm, run in shown[:MOST_RUNS]],
            "left": max(0, len(shown) - MOST_RUNS),
        },
    )


def centre_shares_over_depth(study: StudyResults, prefix: str) -> PageFigure | None:
    """The share of the centre in G over depth, at the first and the last update, and over time; one seed per arm."""
    shown = [(arm, run.scalings) for arm, run in _one_per_arm(_runs_by_seed(study))]
    if not shown:
        return None

    def paint(axes: Sequence[Any]) -> None:
        for number, (arm, updates) in enumerate(shown):
            left, right = axes[2 * number : 2 * number + 2]
            left.set_title(plain(arm.name, 40))
            for update, style in ((updates[0], "--"), (updates[-1], "o-")):
                shares = centre_shares(update)
                left.plot(range(1, len(shares) + 1), shares, style, color=colour(0), ms=3.5, lw=1.4)
            left.set(xlabel="layer", ylabel="share of the centre (%)")
            for index, name in enumerate(THIRDS):
                means = [(update.epoch, thirds(centre_shares(update)).get(name)) for update in updates]
                points = [(epoch, sum(part) / len(part)) for epoch, part in means if part]
                if points:
                    right.plot(*zip(*points, strict=True), "o-", color=colour(2 + index), ms=3, lw=1.4)
            right.set_xlabel("epoch")
            for ax in (left, right):
                ax.xaxis.get_major_locator().set_params(integer=True)

    size = (7.0, 2.5 * len(shown))
    found = join_limited([f"{arm.name}: {observe(updates)}" for arm, updates in shown])
    return PageFigure(
        name="centre-share",
        title="Focus of the scalings on the centre",
        alt=f"Curves of the share of the centre in G over depth and over epochs. {found}.",
        caption="Share of the centre in the sum of G over the central 3×3 positions; a uniform G has 11.1 %. Left: "
        "over depth; solid: last update, dashed: first. Right: over time, mean over the early, middle and late third "
        f"of the layers. One seed per arm. {found}.",
        svg=draw(prefix, size, (len(shown), 2), paint),
        width=72 * size[0],
        legend=(Key(label="all layers", series=0), *_third_keys()),
    )


def dependence(study: StudyResults, prefix: str) -> PageFigure | None:
    """S over pixel distance and over depth, and S itself for some layers; one seed per arm."""
    runs = [(arm, next((run for run in arm.runs if run.has_dependence), None)) for arm in study.shown]
    shown = [(arm, run) for arm, run in runs if run is not None][:MOST_ARMS]
    if not shown:
        return None
    parts, described, width = [], [], 0.0
    for number, (arm, run) in enumerate(shown):
        updates = [update for update in run.scalings if update.dependence]
        start, end = updates[0].dependence, updates[-1].dependence
        # Layers whose inputs carry no information have no S.
        layers = [name for name in updates[-1].layers if name in end]
        curves = over_distance({name: end[name] for name in layers})
        svg, own = _draw_dependence(f"{prefix}-{number}", f"{arm.name}, seed {run.seed}", layers, curves, start, end)
        squares, other = _squares(f"{prefix}-{number}-S", published_layers(arm, layers) or evenly(layers, 3), end)
        parts += [svg, squares]
        width = max(width, own, other)
        for name, curve in curves.items():
            values = ", ".join(f"{value:.2f} at {distance:.2f}" for distance, value in curve.items() if distance)
            described.append(f"{arm.name}, {name}: {values}")
    return PageFigure(
        name="dependence",
        title="Spatial dependence over distance and depth",
        alt="Curves of the dependence S of two pixels over their distance. After the last update: "
        f"{join_limited(described)}.",
        caption="Left: S over the distance of two pixels, mean over the early, middle and late third of the layers. "
        "Right: S of direct (distance 1) and diagonal (1.41) neighbours over depth; solid: last update, dashed: first. "
        "Squares: S of some layers at the last update. One seed per arm; S is the mean over channels.",
        svg="".join(parts),
        width=width,
        legend=(*_third_keys(), Key(label="distance 1", series=0), Key(label="distance 1.41", series=1)),
    )


def observe(updates: Sequence[Scalings]) -> str:
    """What the scalings of a run show: whether deeper layers are more centre-focused, and what training changes."""
    first, last = centre_shares(updates[0]), centre_shares(updates[-1])
    correlation = rank_correlation(range(len(last)), last)
    if correlation is None:
        depth = "too few layers to tell whether depth matters"
    else:
        word = "more" if correlation > 0 else "less"
        depth = f"deeper layers are {word} centre-focused (rank correlation of depth and share {signed(correlation)})"
    before, after = sum(first) / len(first), sum(last) / len(last)
    change = after - before
    word = "no change" if abs(change) < SMALLEST_CHANGE else "more centre-focused" if change > 0 else "smoother"
    return f"{depth}; mean share {before:.1f} % at the first and {after:.1f} % at the last update: {word}"


def centre_shares(update: Scalings) -> list[float]:
    """The share of the centre of each layer, from first to last."""
    return [centre_share(G) for G in update.layers.values()]


def by_distance(S: Matrix) -> dict[float, float]:
    """The mean of S over all displacements of the same length, by that length."""
    found: dict[float, list[float]] = {}
    for i, j, value in _positions(S):
        found.setdefault(math.sqrt(i * i + j * j), []).append(value)
    return {distance: sum(found[distance]) / len(found[distance]) for distance in sorted(found)}


def over_distance(layers: Mapping[str, Matrix]) -> dict[str, dict[float, float]]:
    """The curve over distance of the early, middle and late layers: the mean over those whose kernel reaches so far."""
    curves: dict[str, dict[float, float]] = {}
    for name, part in thirds([by_distance(S) for S in layers.values()]).items():
        distances = sorted({distance for curve in part for distance in curve})
        values = {distance: [curve[distance] for curve in part if distance in curve] for distance in distances}
        curves[name] = {distance: sum(each) / len(each) for distance, each in values.items()}
    return curves


def thirds(layers: Sequence[T]) -> dict[str, Sequence[T]]:
    """Layers from first to last as early, middle and late ones, as many of each as possible; none of them empty."""
    edges = [round(index * len(layers) / 3) for index in range(4)]
    parts = {name: layers[edges[index] : edges[index + 1]] for index, name in enumerate(THIRDS)}
    return {name: part for name, part in parts.items() if part}


def published_layers(arm: ArmResults, layers: Sequence[str]) -> list[str]:
    """The layers of a network that the paper's figure shows."""
    there = [index for index in arm.record.layers if -len(layers) <= index < len(layers)]
    return list(dict.fromkeys(layers[index] for index in there))


def centre_of(values: Matrix | None) -> str:
    """The centre of a matrix as text."""
    return "unknown" if values is None else f"{values[len(values) // 2][len(values[0]) // 2]:.2f}"


def _runs_by_seed(study: StudyResults) -> list[tuple[ArmResults, RunResults]]:
    """The runs with scalings: one seed of every arm before a second one of any."""
    found = [(place, arm, run) for arm in study.shown for place, run in enumerate(arm.runs) if run.has_scalings]
    return [(arm, run) for _, arm, run in sorted(found, key=lambda each: each[0])]


def _one_per_arm(runs: Sequence[tuple[ArmResults, RunResults]]) -> list[tuple[ArmResults, RunResults]]:
    """The first run of each of the first arms."""
    return list({arm.record.key: (arm, run) for arm, run in reversed(runs)}.values())[::-1][:MOST_ARMS]


def _overview(prefix: str, arm: ArmResults, seed: int, there: Sequence[Scalings]) -> tuple[str, float]:
    """The first, a middle and the last update of a run."""
    updates = list({id(each): each for each in (there[0], there[(len(there) - 1) // 2], there[-1])}.values())
    names = evenly(list(there[-1].layers), MOST_LAYERS)
    norm, colours = scaling_colours(G for update in updates for G in update.layers.values())
    rows = [
        HeatRow(
            title=f"after epoch {update.epoch}",
            matrices=[update.layers.get(name) for name in names],
            norm=norm,
            colours=colours,
        )
        for update in updates
    ]
    bold = published_layers(arm, list(there[-1].layers))
    return draw_heat_rows(prefix, rows, names, title=f"{arm.name}, seed {seed}", bold=bold)


def _data(arm: ArmResults, run: RunResults) -> dict[str, Any]:
    """For the interactive part of the page."""
    there = run.scalings
    updates = evenly(there, MOST_UPDATES)
    layers = list(updates[-1].layers)
    return {
        "arm": arm.name,
        "seed": run.seed,
        "layers": layers,
        "epochs": [update.epoch for update in updates],
        "updates": len(there),
        "G": [[_rounded(update.layers.get(name)) for name in layers] for update in updates],
    }


def _rounded(G: Matrix | None) -> Matrix | None:
    return None if G is None else [[round(value, 2) for value in row] for row in G]


def _draw_dependence(
    prefix: str,
    title: str,
    layers: Sequence[str],
    curves: Mapping[str, Mapping[float, float]],
    start: Mapping[str, Matrix],
    end: Mapping[str, Matrix],
) -> tuple[str, float]:
    def paint(axes: Sequence[Any]) -> None:
        left, right = axes
        left.set_title(plain(title, 100), loc="left", fontweight="bold")
        for name, curve in curves.items():
            shade = colour(2 + THIRDS.index(name))
            left.plot(list(curve), list(curve.values()), "o-", color=shade, ms=4, lw=1.5)
        left.set(xlabel="distance in pixels", ylabel="S", ylim=(0, 1.05))
        for distance, index in NEIGHBOURS.items():
            for source, style in ((start, "--"), (end, "o-")):
                points = [
                    (depth, at[distance])
                    for depth, name in enumerate(layers, 1)
                    if name in source and distance in (at := by_distance(source[name]))
                ]
                if points:
                    right.plot(*zip(*points, strict=True), style, color=colour(index), ms=3.5, lw=1.3)
        right.set_xlabel("layer")
        right.set_ylim(bottom=0)
        right.xaxis.get_major_locator().set_params(integer=True)

    return draw(prefix, (7.0, 2.8), (1, 2), paint), 72 * 7.0


def _squares(prefix: str, names: Sequence[str], S: Mapping[str, Matrix]) -> tuple[str, float]:
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    row = HeatRow(title="S", matrices=[S[name] for name in names], norm=Normalize(0, 1), colours=colormaps["Blues"])
    return draw_heat_rows(prefix, [row], names)


def _third_keys() -> list[Key]:
    return [Key(label=name, series=2 + index) for index, name in enumerate(THIRDS)]


def _positions(matrix: Matrix) -> Iterator[tuple[int, int, float]]:
    """Vertical and horizontal displacement from the centre, and the value there."""
    rows, columns = len(matrix), len(matrix[0])
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            yield i - rows // 2, j - columns // 2, value
