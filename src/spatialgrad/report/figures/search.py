"""Results of searches: the curve over k, and grids such as that of α and β."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from spatialgrad.report.figures.base import Key, PageFigure, colour, draw, group_title, plain, speaking
from spatialgrad.report.figures.heatmap import opening, readable_on, sequential
from spatialgrad.report.results import ArmResults, SearchResults, StudyResults
from spatialgrad.report.statistics import Summary, summarize
from spatialgrad.report.tables.cells import capital, metric_name

USUAL_K = 5.0
Curve = list[tuple[float, Summary]]


def k_curve(study: StudyResults, prefix: str) -> PageFigure | None:
    """The gain over k, normalised as in the paper: the baseline is 0 and k = 5 is 1."""
    curves: list[tuple[str, Curve, str]] = []
    for group, arms in study.groups.items():
        points = _points(arms)
        baseline = next((arm for arm in arms if arm.record.reference), None)
        base = summarize(list(baseline.values.values())) if baseline else None
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
    spoken = [f"{name}: " + ", ".join(f"k = {k:g} {each.mean:.2f}" for k, each in points) for name, points, _ in curves]
    caption = "0: the baseline; 1: k = 5. Error bars: ± one standard deviation over seeds."
    if POINTS in units:
        caption += " Where k = 5 does not exceed the baseline, the difference from the baseline is shown in points."
    return PageFigure(
        name="k-curve",
        title="Choice of k",
        alt=f"Curves over k; {', '.join(units)}. {speaking(spoken)}.",
        caption=caption,
        svg=draw(prefix, size, (1, len(units)), paint),
        width=72 * size[0],
        legend=tuple(Key(label=name, series=index) for index, (name, _, _) in enumerate(curves)),
    )


NORMALISED, POINTS = "gain, relative to k = 5", "points above the baseline"


def search(study: StudyResults, prefix: str) -> PageFigure | None:
    """Every search: a heat map over two fields, bars otherwise."""
    known = [each for each in study.searches if each.best is not None]
    if not known:
        return None
    parts, spoken, width = [], [], 0.0
    for each in known:
        svg, own = _heat(each) if len(each.record.fields) == 2 else _bars(each)
        parts.append(svg)
        width = max(width, own)
        best = each.best
        if best is not None:
            spoken.append(f"{each.record.name}: best {_values(best.record.values)} with {best.value:.2f} %")
    kinds = dict.fromkeys("Heat map" if len(each.record.fields) == 2 else "Bars" for each in known)
    done = sum(point.value is not None for each in known for point in each.points)
    total, metric = sum(len(each.points) for each in known), metric_name(study.record.metric)
    return PageFigure(
        name="search",
        title="Search",
        alt=f"{' and '.join(kinds)} of the held-out {metric} over the searched values. {speaking(spoken)}.",
        caption=f"{capital(metric)} in per cent on held-out training images; {done} of {total} points. The best "
        "one is framed.",
        svg="".join(parts),
        width=width,
    )


def _points(arms: Sequence[ArmResults]) -> Curve:
    points = []
    for arm in arms:
        config = arm.record.config
        if config.method.name != "sgs":
            continue
        summary = summarize(list(arm.values.values()))
        if summary is not None:
            points.append((config.scaling.k, summary))
    return sorted(points, key=lambda point: point[0]) if len({k for k, _ in points}) > 1 else []


def _normalised(points: Curve, base: float) -> tuple[Curve, str]:
    usual = next((each.mean for k, each in points if k == USUAL_K), base)
    # Dividing by a loss would turn the curve upside down.
    unit, scale = (NORMALISED, usual - base) if usual > base else (POINTS, 1.0)
    scaled = [
        (k, Summary(n=s.n, mean=(s.mean - base) / scale, std=None if s.std is None else s.std / scale))
        for k, s in points
    ]
    return scaled, unit


def _heat(each: SearchResults) -> tuple[str, float]:
    first, second = each.record.fields
    rows = list(dict.fromkeys(point.record.values[first] for point in each.points))
    columns = list(dict.fromkeys(point.record.values[second] for point in each.points))
    by_place = {(point.record.values[first], point.record.values[second]): point for point in each.points}
    values = [point.value for point in each.points if point.value is not None]
    low, high = min(values), max(values)
    side, left, top = 52, 70, 44
    width, height = left + side * len(columns) + 8, top + side * len(rows) + 8
    parts = [opening(width, height)]
    parts.append(_text(left + side * len(columns) / 2, 14, _short(second), "bold"))
    parts.append(_text(22, top + side * len(rows) / 2, _short(first), "bold"))
    for j, name in enumerate(columns):
        parts.append(_text(left + side * (j + 0.5), top - 8, f"{name}"))
    for i, name in enumerate(rows):
        parts.append(_text(left - 16, top + side * (i + 0.5) + 4, f"{name}"))
        for j, other in enumerate(columns):
            point = by_place.get((name, other))
            x, y = left + side * j, top + side * i
            if point is None or point.value is None:
                parts.append(
                    f'<rect x="{x}" y="{y}" width="{side}" height="{side}" fill="none" stroke="var(--grid)"/>'
                    + _text(x + side / 2, y + side / 2 + 4, "–")
                )
                continue
            fill = sequential((point.value - low) / (high - low) if high > low else 0.5)
            parts.append(f'<rect x="{x}" y="{y}" width="{side}" height="{side}" fill="{fill}"/>')
            parts.append(_text(x + side / 2, y + side / 2 + 4, f"{point.value:.1f}", fill=readable_on(fill)))
            if point is each.best:
                frame = f'x="{x + 2}" y="{y + 2}" width="{side - 4}" height="{side - 4}"'
                parts.append(f'<rect {frame} fill="none" stroke="var(--series-1)" stroke-width="4"/>')
    return "".join([*parts, "</svg>"]), float(width)


def _bars(each: SearchResults) -> tuple[str, float]:
    known = [point for point in each.points if point.value is not None]
    low = min(point.value or 0.0 for point in known)
    high = max(point.value or 0.0 for point in known)
    bar, left = 22, 170
    width, height = 560, 26 + bar * len(known)
    parts = [opening(width, height)]
    parts.append(_text(8, 14, plain(each.record.name), "bold", anchor="start"))
    for index, point in enumerate(known):
        y, value = 24 + bar * index, point.value or 0.0
        # Bars show differences, not shares; even the lowest value gets a bar.
        length = 30 + 220 * ((value - low) / (high - low) if high > low else 1.0)
        series = 1 if point is each.best else 6
        parts.append(_text(left - 8, y + 13, plain(_values(point.record.values), 32), anchor="end"))
        parts.append(
            f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{bar - 6}" fill="var(--series-{series})"/>'
        )
        best = " (best)" if point is each.best else ""
        parts.append(_text(left + length + 6, y + 13, f"{value:.2f} %{best}", anchor="start"))
    return "".join([*parts, "</svg>"]), float(width)


def _text(
    x: float, y: float, text: str, weight: str = "normal", *, fill: str = "currentColor", anchor: str = "middle"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" font-weight="{weight}" fill="{fill}" text-anchor="{anchor}">'
        f"{escape(plain(text, 40))}</text>"
    )


def _short(name: str) -> str:
    return {"alpha": "α", "beta": "β"}.get(name.rpartition(".")[2], name.rpartition(".")[2])


def _values(values: Any) -> str:
    return ", ".join(f"{_short(name)} = {value}" for name, value in values.items())
