"""What single studies say, for the pages: sentences, tables of their arms, and the commands that repeat them."""

from __future__ import annotations

from spatialgrad.report.provenance import command, progress
from spatialgrad.report.results import ArmResults, StudyResults
from spatialgrad.report.statistics import Comparison, summarize
from spatialgrad.report.tables.cells import metric_name, signed, spread
from spatialgrad.report.tables.results import compare_all

NOT_YET = "not measured yet"


def with_interval(comparison: Comparison) -> str:
    """A difference with its 95 % interval, if there is one."""
    if comparison.low is None or comparison.high is None:
        return signed(comparison.difference)
    return f"{signed(comparison.difference)} [{signed(comparison.low)}, {signed(comparison.high)}]"


def live_sentence(studies: list[StudyResults]) -> str:
    """Accuracy with scalings that are measured live, beside the paper's procedure."""
    study = _named("live", studies)
    if study is None:
        return f"Accuracy with live scalings: {NOT_YET}."
    (live,) = [arm for arm in study.shown if not arm.record.reference]
    reference, comparison = study.reference(live), compare_all(study)[live.record.key]
    assert reference is not None
    before, after = (summarize(list(arm.values.values())) for arm in (reference, live))
    if before is None or after is None or comparison is None:
        return f"Accuracy with live scalings: {NOT_YET}."
    return (
        "Accuracy (study `live` at desk scale: VGG-11 at a quarter of its width, 20,000 images of CIFAR-100, "
        f"30 epochs, {comparison.n} seeds): {spread(before)} % with `update(loader)`, {spread(after)} % live; "
        f"difference, paired by seed, {_interval(comparison)}."
    )


def regimes_table(studies: list[StudyResults]) -> str:
    """The gain by the numbers of training steps and of training images; cells with more seeds than others say so."""
    study = _named("regimes", studies)
    if study is None:
        return f"The study `regimes`: {NOT_YET}."
    compared = compare_all(study)
    fewest = min((each.n for each in compared.values() if each is not None), default=0)
    gains: dict[str, dict[str, str]] = {}
    columns: list[str] = []
    for arm in study.shown:
        images, steps = arm.group
        row = gains.setdefault(steps, {})
        if images not in columns:
            columns.append(images)
        if (comparison := compared[arm.record.key]) is not None and not arm.record.reference:
            more = f" ({comparison.n} seeds)" if comparison.n > fewest else ""
            row[images] = _interval(comparison) + more
    return _table(
        ["training steps", *(f"{images} images" for images in columns)],
        [[steps, *(row.get(images, NOT_YET) for images in columns)] for steps, row in gains.items()],
    )


def arms_table(name: str, studies: list[StudyResults]) -> str:
    """Every arm of a study that has finished runs, with its gain over the arm it is compared with."""
    study = _named(name, studies)
    if study is None or not any(arm.values for arm in study.shown):
        return f"The study `{name}`: {NOT_YET}."
    rows = [
        [*arm.group, arm.label, *_measured(arm, comparison)]
        for arm, comparison in _with_comparisons(study)
        if arm.values
    ]
    titles = [*(title.lower() for title in study.shown[0].record.group), "training"]
    return _table([*titles, "seeds", f"{metric_name(study.record.metric)} (%)", "gain over plain, 95 % interval"], rows)


def _with_comparisons(study: StudyResults) -> list[tuple[ArmResults, Comparison | None]]:
    compared = compare_all(study)
    return [(arm, None if arm.record.reference else compared[arm.record.key]) for arm in study.shown]


def _measured(arm: ArmResults, comparison: Comparison | None) -> list[str]:
    """Number of seeds, mean with deviation, and gain."""
    accuracy = summarize(list(arm.values.values()))
    assert accuracy is not None
    return [str(accuracy.n), spread(accuracy), "" if comparison is None else _interval(comparison)]


def _table(titles: list[str], rows: list[list[str]]) -> str:
    lines = ["".join(f"| {cell} " if cell else "| " for cell in row) + "|" for row in (titles, *rows)]
    return "\n".join([lines[0], "|---" * len(titles) + "|", *lines[1:]])


def provenance(studies: list[StudyResults]) -> str:
    """The commands, the machines and the pages of the archived studies."""
    lines = []
    for study in studies:
        name = f"{study.record.name}-{study.record.scale}"
        report = f'<a href="reports/{name}/index.html">report</a>'
        lines.append(f"- **{study.record.title}**: {progress(study)}; {report}, `{command(study)}`")
    return "\n".join(lines)


def _named(name: str, studies: list[StudyResults]) -> StudyResults | None:
    return next((study for study in studies if study.record.name == name), None)


def _interval(comparison: Comparison) -> str:
    text = with_interval(comparison)
    return f"**{text}**" if comparison.supported else text
