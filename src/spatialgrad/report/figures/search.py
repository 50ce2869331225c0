"""Results of searches: the curve over k, and grids such as that of α and β."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spatialgrad.plot import readable_on
from spatialgrad.report.figures.base import Key, PageFigure, colour, draw, group_title, join_limited, plain
from spatialgrad.report.results import ArmResults, SearchResults, StudyResults
from spatialgrad.report.statistics import Summary
from spatialgrad.report.tables.cells import capital, metric_name

DEFAULT_K = 5.0
NORMALISED, POINTS = "gain, relative to k = 5", "points above the baseline"
Curve = list[tuple[float, Summary]]


def k_curve(study: StudyResults, prefix: str) -> PageFigure | None:
    """The gain over k, normalised as in the paper: the baseline is 0 and k = 5 is 1."""
    curves: list[tuple[str, Curve, str]] = []
    for group, arms in study.groups.items():
        points = _points(arms)
        baseline = next((arm for arm in arms if arm.record.reference), None)
        base = baseline.summary if baseline else None
        if points and base is not None:
            curves.append((group_title(group) or plain(study.record.title), *_normalised(points, base.mean)))
    if not curves:
        return None
    units = list(dict.fromkeys(unit for _, _, unit in curves))

    def paint(axes: Sequence[Any]) -> None:
        for ax, unit in zip(axes, units, strict=True):
            for index, (_, points, own) in enumerate(curves):
                if own == unit:
                    ax.errorbar(
                        [k for k, _ in points],
                        [each.mean for _, each in points],
                        yerr=[each.std or 0.0 for _, each in points],
                        color=colour(index),
                        fmt="o-",
                        ms=4.5,
                        lw=1.5,
                        capsize=2,
                    )
            ax.axhline(0, color=colour(6), lw=1, ls=":")
            ax.set_xlabel("k")
            ax.set_ylabel(unit)

    size = (5.4 if len(units) == 1 else 7.4, 3.0)
    described = [
        f"{name}: " + ", ".join(f"k = {k:g} {each.mean:.2f}" for k, each in points) for name, points, _ in curves
    ]
    caption = "0: the baseline; 1: k = 5. Error bars: ± one standard deviation over seeds."
    if POINTS in units:
        caption += " Where k = 5 does not exceed the baseline, the difference from the baseline is shown in points."
    return PageFigure(
        name="k-curve",
        title="Choice of k",
        alt=f"Curves over k; {', '.join(units)}. {join_limited(described)}.",
        caption=caption,
        svg=draw(prefix, size, (1, len(units)), paint),
        width=72 * size[0],
        legend=tuple(Key(label=name, series=index) for index, (name, _, _) in enumerate(curves)),
    )


def search(study: StudyResults, prefix: str) -> PageFigure | None:
    """Every search: a heat map over two fields, bars otherwise."""
    known = [each for each in study.searches if each.best is not None]
    if not known:
        return None
    described = [
        f"{each.record.name}: best {_values(each.best.record.values)} with {each.best.value:.2f} %"
        for each in known
        if each.best is not None
    ]
    heights = [0.9 + (0.55 if len(each.record.fields) == 2 else 0.27) * _num_rows(each) for each in known]

    def paint(axes: Sequence[Any]) -> None:
        for ax, each in zip(axes, known, strict=True):
            ax.set_title(plain(each.record.name), loc="left", fontweight="bold")
            (_paint_map if len(each.record.fields) == 2 else _paint_bars)(ax, each)

    kinds = dict.fromkeys("Heat map" if len(each.record.fields) == 2 else "Bars" for each in known)
    done = sum(point.value is not None for each in known for point in each.points)
    total, metric = sum(len(each.points) for each in known), metric_name(study.record.metric)
    return PageFigure(
        name="search",
        title="Search",
        alt=f"{' and '.join(kinds)} of the held-out {metric} over the searched values. {join_limited(described)}.",
        caption=f"{capital(metric)} in per cent on held-out training images; {done} of {total} points. The best "
        "one is framed.",
        svg=draw(prefix, (6.4, sum(heights)), (len(known), 1), paint, height_ratios=heights),
        width=72 * 6.4,
    )


def _points(arms: Sequence[ArmResults]) -> Curve:
    points = []
    for arm in arms:
        summary, config = arm.summary, arm.record.config
        if summary is not None and config.method.name == "sgs":
            points.append((config.scaling.k, summary))
    return sorted(points, key=lambda point: point[0]) if len({k for k, _ in points}) > 1 else []


def _normalised(points: Curve, base: float) -> tuple[Curve, str]:
    default = next((each.mean for k, each in points if k == DEFAULT_K), base)
    # Dividing by a loss would turn the curve upside down.
    unit, scale = (NORMALISED, default - base) if default > base else (POINTS, 1.0)
    scaled = [
        (k, Summary(n=s.n, mean=(s.mean - base) / scale, std=None if s.std is None else s.std / scale))
        for k, s in points
    ]
    return scaled, unit


def _paint_map(ax: Any, each: SearchResults) -> None:
    """A map over two fields; the best point is framed."""
    import numpy as np
    from matplotlib.patches import Rectangle

    rows, columns = (
        [*dict.fromkeys(point.record.values[name] for point in each.points)] for name in each.record.fields
    )
    first, second = each.record.fields
    values = np.full((len(rows), len(columns)), np.nan)
    for point in each.points:
        if point.value is not None:
            values[rows.index(point.record.values[first]), columns.index(point.record.values[second])] = point.value
    image = ax.imshow(values, cmap="Blues", aspect="auto", interpolation="none")
    for (i, j), value in np.ndenumerate(values):
        missing = np.isnan(value)
        ink = None if missing else readable_on(image.cmap(image.norm(value)))
        ax.text(j, i, "–" if missing else f"{value:.1f}", ha="center", va="center", color=ink)
    if each.best is not None:
        place = columns.index(each.best.record.values[second]), rows.index(each.best.record.values[first])
        corner = (place[0] - 0.46, place[1] - 0.44)
        ax.add_patch(Rectangle(corner, 0.92, 0.88, fill=False, edgecolor=colour(1), lw=3))
    ax.set_xticks(range(len(columns)), [f"{name}" for name in columns])
    ax.set_yticks(range(len(rows)), [f"{name}" for name in rows])
    ax.set(xlabel=_short(second), ylabel=_short(first))
    ax.grid(visible=False)


def _paint_bars(ax: Any, each: SearchResults) -> None:
    """A bar per point; they show differences, not shares, and even the lowest value gets one."""
    known = [(point, point.value) for point in each.points if point.value is not None]
    low, high = (function(value for _, value in known) for function in (min, max))
    left = low - 0.12 * max(high - low, 0.1)
    for place, (point, value) in enumerate(known):
        is_best = point is each.best
        ax.barh(place, value - left, left=left, height=0.7, color=colour(1 if is_best else 6), lw=0)
        label = f" {value:.2f} %{' (best)' if is_best else ''}"
        ax.text(value, place, label, va="center", size=8)
    ax.set_yticks(range(len(known)), [plain(_values(point.record.values), 32) for point, _ in known])
    ax.set_xlim(left, high + 0.3 * max(high - low, 0.1))
    ax.invert_yaxis()
    ax.grid(visible=False)


def _num_rows(each: SearchResults) -> int:
    if len(each.record.fields) == 2:
        return len({point.record.values[each.record.fields[0]] for point in each.points})
    return sum(point.value is not None for point in each.points)


def _short(name: str) -> str:
    return {"alpha": "α", "beta": "β"}.get(name.rpartition(".")[2], name.rpartition(".")[2])


def _values(values: Any) -> str:
    return ", ".join(f"{_short(name)} = {value}" for name, value in values.items())
