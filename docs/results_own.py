"""What single studies say, for the pages: live against `update(loader)`, when scaling helps, and tables of arms."""

from __future__ import annotations

from spatialgrad.report.results import StudyResults
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
    """The gain by the numbers of training steps and of training images."""
    study = _named("regimes", studies)
    if study is None:
        return f"The study `regimes`: {NOT_YET}."
    compared = compare_all(study)
    gains: dict[str, dict[str, str]] = {}
    columns: list[str] = []
    for arm in study.shown:
        images, steps = arm.group
        row = gains.setdefault(steps, {})
        if images not in columns:
            columns.append(images)
        if (comparison := compared[arm.record.key]) is not None and not arm.record.reference:
            row[images] = _interval(comparison)
    lines = [
        "| training steps | " + " | ".join(f"{images} images" for images in columns) + " |",
        "|---|" + "---|" * len(columns),
        *(
            f"| {steps} | " + " | ".join(row.get(images, NOT_YET) for images in columns) + " |"
            for steps, row in gains.items()
        ),
    ]
    return "\n".join(lines)


def arms_table(name: str, studies: list[StudyResults]) -> str:
    """Every arm of a study that has finished runs, with its gain over the arm it is compared with."""
    study = _named(name, studies)
    if study is None or not any(arm.values for arm in study.shown):
        return f"The study `{name}`: {NOT_YET}."
    compared, lines = compare_all(study), list[str]()
    for arm in study.shown:
        accuracy, comparison = summarize(list(arm.values.values())), compared[arm.record.key]
        if accuracy is not None:
            gain = "" if comparison is None or arm.record.reference else f" {_interval(comparison)}"
            lines.append(f"| {' | '.join([*arm.group, arm.label])} | {accuracy.n} | {spread(accuracy)} |{gain} |")
    titles = [*(title.lower() for title in study.shown[0].record.group), "training"]
    header = (
        f"| {' | '.join(titles)} | seeds | {metric_name(study.record.metric)} (%) | gain over plain, 95 % interval |"
    )
    return "\n".join([header, "|---" * (len(titles) + 3) + "|", *lines])


def _named(name: str, studies: list[StudyResults]) -> StudyResults | None:
    return next((study for study in studies if study.record.name == name), None)


def _interval(comparison: Comparison) -> str:
    text = with_interval(comparison)
    return f"**{text}**" if comparison.supported else text
