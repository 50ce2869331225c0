"""Fill the tables of README and docs, and draw their pictures, from the runs that are archived in results/.

Run: make results (or python docs/results.py, with spatialgrad[all]). Pages mark the place of a table by two comments,
`<!-- results: NAME -->` and `<!-- end of results -->`; what is between them is replaced.
"""

from __future__ import annotations

import json
import re
import shlex
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pictures import draw_fit, draw_front, draw_length, draw_results

from spatialgrad.report.load import load_results
from spatialgrad.report.provenance import command, progress
from spatialgrad.report.results import ArmResults, StudyResults
from spatialgrad.report.statistics import Comparison, Summary, compare_paired, correct
from spatialgrad.report.tables.cells import interval, metric_name, p_value, signed, spread
from spatialgrad.report.tables.int8 import int8_tables
from spatialgrad.report.tables.results import compared_arms
from spatialgrad.studies.archive import archives_in
from spatialgrad.studies.registry import STUDIES
from spatialgrad.train.config import ModelConfig, TrainConfig

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
BRANCHED = ("ACB", "RepVGG", "DBB", "DyRep")
PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / name for name in ("index.md", "results.md", "quantization.md", "methods/sgs.md")),
    *(ROOT / "docs" / "methods" / f"{method.lower()}.md" for method in BRANCHED),
)
COST, OVERHEAD = RESULTS / "cost.json", RESULTS / "overhead.json"
QUOTED = ROOT / "src" / "spatialgrad" / "cli" / "desk_result.json"
"""The result that the demonstration quotes; it is shipped with the package, the runs are not."""
MARKED = re.compile(r"(?P<begin><!-- results: (?P<name>[a-z-]+) -->).*?(?P<end>\n<!-- end of results -->)", re.DOTALL)
NETWORKS = {
    "vgg11-linear": "VGG-11",
    "resnet18": "ResNet-18",
    "preactresnet18": "PreActResNet-18",
    "mobilenetv2": "MobileNetV2",
    "convnext-atto": "ConvNeXt-Atto",
}
FRACTIONS = {0.125: "⅛", 0.25: "¼", 0.5: "½"}
LABELS = {
    "baseline": "plain",
    "sgs": "SGS",
    "repopt": "RepOpt",
    "acb": "ACB",
    "repvgg": "RepVGG",
    "qarepvgg": "QARepVGG",
    "dbb": "DBB",
    "dyrep": "DyRep",
}
WIDTHS = {"0.25": "a quarter of its width", "1": "full width"}
PLAIN, SHUFFLED = "Plain", "SGS, G shuffled"
FRONT = {"plain": PLAIN, "SGS": "SGS", "SGS with G\nshuffled": SHUFFLED}
"""The arms of the controls on the first picture, by the words there."""
TRAINING = "train_accuracy"
NOT_YET = "not measured yet"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method beside plain training of the same seeds; accuracies in per cent."""

    study: str
    label: str
    method: str
    dataset: str
    network: str
    epochs: int
    plain: Summary
    scaled: Summary
    comparison: Comparison
    """Corrected for the whole study."""
    gains: dict[int, float]
    """By seed, in percentage points."""
    plain_training: float
    """Mean accuracy on training images in the last epoch."""
    scaled_training: float
    training: Comparison
    """The same for that accuracy, without a correction."""
    configs: tuple[TrainConfig, TrainConfig]
    """Of the method and of plain training."""
    arms: tuple[str, str]
    """Their names, for `--only`."""

    @property
    def gap(self) -> float:
        """By how much plain training is better on training images than on test images."""
        return self.plain_training - self.plain.mean


COLUMNS: dict[str, Callable[[Row], object]] = {
    "data set": lambda row: row.dataset,
    "network": lambda row: row.network,
    "epochs": lambda row: row.epochs,
    "training": lambda row: row.label,
    "seeds": lambda row: row.comparison.n,
    "plain (%)": lambda row: f"{spread(row.plain)} ({row.plain_training:.1f})",
    "SGS (%)": lambda row: f"{spread(row.scaled)} ({row.scaled_training:.1f})",
    "gain, 95 % interval": lambda row: marked(row.comparison),
    "p": lambda row: "" if row.comparison.holm is None else p_value(row.comparison.holm),
    "training images (%)": lambda row: f"{row.scaled_training:.1f}",
    "test images (%)": lambda row: spread(row.scaled),
    "difference, 95 % interval": lambda row: marked(row.comparison),
    "plain: training accuracy (%)": lambda row: f"{row.plain_training:.2f}",
    "minus test accuracy": lambda row: signed(row.gap),
    "SGS: change on training images": lambda row: with_interval(row.training),
    "change on test images": lambda row: with_interval(row.comparison),
}
"""What tables show of a row, by title."""
LENGTH = ("epochs", "seeds", "plain (%)", "SGS (%)", "gain, 95 % interval", "p")
GAINS = ("data set", "network", *LENGTH)
CONTROLS = ("training", "seeds", "training images (%)", "test images (%)", "difference, 95 % interval")
FIT = ("data set", "network", "epochs", *list(COLUMNS)[-4:])


def fits(training: float, test: float) -> bool:
    """Whether the error on training images is at most half of the error on test images; accuracies in per cent."""
    return 2 * (100 - training) <= 100 - test


def load_archived() -> list[StudyResults]:
    """The archived studies, in the order in which `study list` has them; those that it no longer has come last."""
    studies = [load_results(path) for path in archives_in(RESULTS)]
    order = {name: place for place, name in enumerate(STUDIES)}
    return sorted(studies, key=lambda study: order.get(study.record.name, len(order)))


def compared_rows(studies: Sequence[StudyResults]) -> list[Row]:
    """Every classification that was compared with plain training."""
    found = []
    for study in (each for each in studies if each.record.metric == "accuracy"):
        for arm, comparison in compared_arms(study):
            config, reference = arm.record.config, study.reference(arm)
            if reference is None or comparison is None or reference.record.config.method.name != "baseline":
                continue
            before, after = reference.last(TRAINING), arm.last(TRAINING)
            found.append(
                Row(
                    study=study.record.name,
                    label=arm.label,
                    dataset=_dataset(arm),
                    network=_network(config.model),
                    epochs=config.budget.epochs,
                    method=LABELS.get(config.method.name, config.method.name),
                    plain=reference.summary,
                    scaled=arm.summary,
                    comparison=comparison,
                    gains={
                        seed: arm.values[seed] - reference.values[seed] for seed in arm.values.keys() & reference.values
                    },
                    plain_training=statistics.fmean(before.values()),
                    scaled_training=statistics.fmean(after.values()),
                    training=compare_paired(after, before),
                    configs=(config, reference.record.config),
                    arms=(arm.record.name, reference.record.name),
                )
            )
    return found


def distinct_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows without repetitions: the same comparison may be part of several studies; that of most seeds counts."""
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: -row.comparison.n):
        if all(row.configs != other.configs for other in found):
            found.append(row)
    return sorted(found, key=rows.index)


def main_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of the main table: scaling on a data set or a network, with the settings of the recipe.

    Those of one data set stand together, and in them those of one network.
    """
    studies = ("cifar", "sensitivity", "datasets", "architectures")
    of = [row for row in rows if row.method == "SGS" and row.study in studies]
    datasets, networks = ([getattr(row, name) for row in of] for name in ("dataset", "network"))
    return sorted(of, key=lambda row: (datasets.index(row.dataset), networks.index(row.network), row.epochs))


def front_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of the README, with Holm's correction over them alone.

    CIFAR-100 at the shortest length after which plain training fits, or the longest that was trained; then the data
    sets and networks of the study of fitted trainings.
    """
    lengths = [row for row in length_rows(rows) if row.study != "cifar"]
    fitted = [row for row in rows if row.study == "fitted" and row.method == "SGS"]
    shown = ([row for row in lengths if fits(row.plain_training, row.plain.mean)] or lengths[-1:])[:1] + fitted
    corrected = correct([row.comparison for row in shown])
    return [replace(row, comparison=each) for row, each in zip(shown, corrected, strict=True) if each is not None]


def length_rows(rows: Sequence[Row]) -> list[Row]:
    """Scaling of VGG-11 on CIFAR-100 by the number of epochs; of equal lengths, the one with most seeds."""
    of = [row for row in rows if row.study in ("cifar", "sensitivity", "length") and row.label.startswith("SGS")]
    of = [row for row in distinct_rows(of) if row.configs[0].data.name == "cifar100"]
    return sorted(of, key=lambda row: row.epochs)


# Tables and sentences, by the names that the pages use.


def rows_table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """A line per row."""
    return table(columns, [[COLUMNS[title](row) for title in columns] for row in rows])


def controls_table(rows: Sequence[Row]) -> str:
    """Every arm of the controls that has runs, below plain training, with which it is compared."""
    of = [row for row in rows if row.study == "controls"]
    if not of:
        return f"The study `controls`: {NOT_YET}."
    first = max(of, key=lambda row: row.plain.n)
    plain = ["plain", first.plain.n, f"{first.plain_training:.1f}", spread(first.plain), ""]
    return table(CONTROLS, [plain, *([COLUMNS[title](row) for title in CONTROLS] for row in of)])


def control_sentence(studies: Sequence[StudyResults]) -> str:
    """What the same factors do at other positions."""
    values = control_values(studies)
    plain, scaled, shuffled = (values.get(label, {}) for label in FRONT.values())
    worse, better = compare_paired(shuffled, plain), compare_paired(scaled, shuffled)
    if worse is None or better is None:
        return f"SGS with the factors of G at other positions: {NOT_YET}."
    return (
        "**It matters where the factors of G are.** With the measured factors at shuffled positions, the network of "
        f"the picture is {with_interval(worse)} points from plain training; SGS is {with_interval(better)} points "
        f"above that ({worse.n} seeds)."
    )


def control_values(studies: Sequence[StudyResults]) -> dict[str, dict[int, float]]:
    """Accuracy on test images by arm of the controls and seed."""
    return {arm.label: arm.values for arm, _ in _named("controls", studies) if arm.values}


def fitted_table(studies: Sequence[StudyResults]) -> str:
    """The lengths that plain training has tried with seed 0, and which of them the rule chooses."""
    # The networks on CIFAR-100 have lengths that were set beforehand.
    arms = [arm for arm, _ in _named("fitted", studies) if arm.record.reference and 0 in arm.values]
    arms = [arm for arm in arms if arm.record.group["Dataset"] != "CIFAR-100"]
    settings: dict[tuple[str, ...], list[ArmResults]] = {}
    for arm in sorted(arms, key=lambda arm: arm.record.config.budget.epochs):
        settings.setdefault(arm.group[:-1], []).append(arm)  # without the number of epochs
    cells = []
    for (dataset, images, network), tried in settings.items():
        reached = [fits(arm.last(TRAINING)[0], arm.values[0]) for arm in tried]
        for arm, fitting in zip(tried, reached, strict=True):
            (run,) = (run for run in arm.runs if run.seed == 0)
            hours = run.result.training_seconds / 3600
            if fitting:
                says = "**chosen**: it fits" if arm is tried[reached.index(True)] else ""
            elif arm is not tried[-1]:
                says = "does not fit"
            else:
                says = "**chosen**: twice as many take more than an hour" if 2 * hours > 1 else "does not fit yet"
            errors = [100 - arm.last(TRAINING)[0], 100 - arm.values[0]]
            epochs = arm.record.config.budget.epochs
            cells.append(
                [dataset, images, network, epochs, *(f"{error:.1f}" for error in errors), f"{hours:.2f}", says]
            )
    if not cells:
        return f"The lengths of the study `fitted`: {NOT_YET}."
    errors = ("error on training images (%)", "error on test images (%)")
    return table(("data set", "training images", "network", "epochs", *errors, "hours", "rule"), cells)


def methods_table(rows: Sequence[Row], cost: dict[str, Any]) -> str:
    """Every method on CIFAR-100 for the same number of epochs, with what a step of it costs."""
    of = [row for row in rows if row.study == "quantization" and row.label == row.method]
    if not of:
        rivals = [row for row in rows if row.study == "rivals" and row.label == row.method]
        of = [*rivals, *(row for row in rows if row.study == "cifar" and row.dataset.startswith("CIFAR-100"))]
    by_method = {row.method: row for row in of}
    cells = []
    for method, measured in cost["methods"].items():
        if method == "plain" and of:
            widest = max(of, key=lambda row: row.plain.n).plain
            own = [widest.n, spread(widest), ""]
        elif method in by_method:
            row = by_method[method]
            gain = with_interval(row.comparison)
            own = [row.comparison.n, spread(row.scaled), f"**{gain}**" if row.comparison.better else gain]
        else:
            own = ["", NOT_YET, ""]
        cells.append([method, *own, f"{step_ratio(cost, method):.2f} ×", f"{measured['parameters'] / 1e6:.1f} M"])
    titles = ("seeds", "accuracy (%)", "gain over plain, 95 % interval", "time of a step", "training parameters")
    return table(("method", *titles), cells)


def quantized_table(studies: Sequence[StudyResults]) -> str:
    """Every method in INT8: accuracy, the change by quantization, and the range of weights."""
    of = [study for study in studies if study.record.name == "quantization"]
    tables = [table for study in of for table in int8_tables(study, study.shown)]
    if not tables:
        return f"Accuracy in INT8: {NOT_YET}."
    (int8,) = tables
    first = int8.headers - 1  # without the group
    titles = [column.title.replace("\u00a0", " ") for column in int8.columns[first:]]
    return table(titles, [[" ".join(cell.lines) for cell in row[first:]] for row in int8.rows])


def headline(rows: Sequence[Row]) -> str:
    """The gain on CIFAR-100, for the first page."""
    row = front_rows(rows)[0]
    each = row.comparison
    return (
        f"**{signed(each.difference)} points**\n\n"
        f"{row.dataset}: {row.plain.mean:.2f} → {row.scaled.mean:.2f} % ({row.network}, {row.epochs} epochs, {each.n} "
        f"seeds; 95 % interval {signed(each.low or 0)} to {signed(each.high or 0)})"
    )


def length_sentence(rows: Sequence[Row]) -> str:
    """The gain of VGG-11 on CIFAR-100 by the number of epochs, and by how much the longest training gains more."""
    of = length_rows(rows)
    gains = [f"{with_interval(row.comparison)} points in {row.epochs} epochs ({row.comparison.n} seeds)" for row in of]
    text = f"VGG-11 on the 20k/5k subset of CIFAR-100 gains {', '.join([*gains[:-2], ' and '.join(gains[-2:])])}"
    growth = compare_paired(of[-1].gains, of[0].gains) if len(of) > 1 else None
    longer = "longer" if len(of) == 2 else "longest"
    return text + (
        "." if growth is None else f"; paired by seed, the {longer} training gains {with_interval(growth)} more."
    )


def fit_rows(rows: Sequence[Row]) -> list[Row]:
    """Scaling at each length and number of images, with the most overfitted plain network first."""
    of = [*main_rows(rows), *(row for row in rows if row.study == "regimes")]
    return sorted(of, key=lambda row: -row.gap)


def fit_fact(rows: Sequence[Row]) -> str:
    """In how many comparisons the accuracy on training images was lower, and that on test images higher."""
    of = fit_rows(rows)
    lower = [-row.training.difference for row in of if row.training.difference < 0]
    if not lower:
        return f"The accuracy on training images: {NOT_YET}."
    higher = sum(row.comparison.difference > 0 for row in of)
    return (
        f"Scaling lowered the accuracy on *training* images in {len(lower)} of {len(of)} comparisons, by "
        f"{min(lower):.2f} to {max(lower):.2f} points, and raised it on test images in {higher}."
    )


def live_sentence(studies: Sequence[StudyResults]) -> str:
    """Accuracy with scalings that are measured live, beside the paper's procedure."""
    known = [(arm, comparison) for arm, comparison in _named("live", studies) if arm.values]
    if len(known) != 2 or known[1][1] is None:
        return f"Accuracy with live scalings: {NOT_YET}."
    (before, _), (after, comparison) = known
    return (
        "Accuracy (study `live` at desk scale: VGG-11 at a quarter of its width, 20,000 images of CIFAR-100, "
        f"30 epochs, {comparison.n} seeds): {spread(before.summary)} % with `update(loader)`, {spread(after.summary)} "
        f"% live; difference, paired by seed, {marked(comparison)}."
    )


def regimes_table(studies: Sequence[StudyResults]) -> str:
    """The gain by the numbers of training steps and of training images; cells with more seeds than others say so."""
    arms = _named("regimes", studies)
    if not arms:
        return f"The study `regimes`: {NOT_YET}."
    fewest = min((each.n for _, each in arms if each is not None), default=0)
    columns = list(dict.fromkeys(arm.group[0] for arm, _ in arms))
    gains: dict[str, dict[str, str]] = {}
    for arm, comparison in arms:
        images, steps = arm.group
        row = gains.setdefault(steps, {})
        if comparison is not None:
            row[images] = marked(comparison) + (f" ({comparison.n} seeds)" if comparison.n > fewest else "")
    return table(
        ["training steps", *(f"{images} images" for images in columns)],
        [[steps, *(row.get(images, NOT_YET) for images in columns)] for steps, row in gains.items()],
    )


def arms_table(name: str, studies: Sequence[StudyResults]) -> str:
    """Every arm of a study that has finished runs, with its gain over the arm it is compared with."""
    arms = [(arm, comparison) for arm, comparison in _named(name, studies) if arm.values]
    if not arms:
        return f"The study `{name}`: {NOT_YET}."
    metric = next(study.record.metric for study in studies if study.record.name == name)
    groups = [title.lower() for title in arms[0][0].record.group]
    titles = [*groups, "training", "seeds", f"{metric_name(metric)} (%)", "gain over plain, 95 % interval"]
    cells = [
        [*arm.group, arm.label, arm.summary.n, spread(arm.summary), "" if comparison is None else marked(comparison)]
        for arm, comparison in arms
    ]
    return table(titles, cells)


def provenance(studies: Sequence[StudyResults]) -> str:
    """The commands, the machines and the pages of the archived studies."""
    return "\n".join(
        f"- **{study.record.title}**: {progress(study)}; "
        f'<a href="reports/{study.folder.stem}/index.html">report</a>, `{command(study)}`'
        for study in studies
    )


def step_ratio(cost: dict[str, Any], method: str) -> float:
    """Time of a step in units of a plain one: the median over interleaved rounds."""
    pairs = zip(cost["methods"][method]["seconds"], cost["methods"]["plain"]["seconds"], strict=True)
    return statistics.median(seconds / plain for seconds, plain in pairs)


def cost_sentence(cost: dict[str, Any], method: str) -> str:
    """What a method costs, for its own page."""
    plain, own = cost["methods"]["plain"], cost["methods"][method]
    macs, parameters = ([each[key] / 1e6 for each in (own, plain)] for key in ("macs", "parameters"))
    memory = own["peak_mib"] / plain["peak_mib"]
    return (
        f"VGG-16 for CIFAR has {macs[0]:.0f} M multiply-accumulates instead of {macs[1]:.0f} M, and "
        f"{parameters[0]:.1f} M parameters instead of {parameters[1]:.1f} M. A training step takes "
        f"{step_ratio(cost, method):.2f} times as long as that of the plain network, and {memory:.2f} times its memory "
        "(`python benchmarks/bench_reparam.py`, batch 32, one CPU thread)."
    )


def overhead_table(overhead: dict[str, Any]) -> str:
    """What scaling itself takes: measuring, memory, steps and whole trainings."""
    update, memory = overhead["update"], overhead["memory"]
    times = update["seconds"]
    all_calls, half = ([times[calls] / times[ours] for ours in ("torch", "[fast]")] for calls in ("8 calls", "4 calls"))
    cells = [
        [
            "measuring VGG-16's maps for 256 images",
            f"{all_calls[0]:.1f} × as fast as one histogram call per channel and displacement, {all_calls[1]:.1f} × "
            f"with `[fast]`; {half[0]:.1f} and {half[1]:.1f} × as fast as the authors' calls for half of the "
            "displacements",
            update["command"],
        ],
        ["a live update", f"{times['live'] / times['update']:.2f} × the time of `update(loader)`", update["command"]],
        [
            "peak memory of an update beyond a forward pass",
            f"at most {memory['largest_extra_maps']:.1f} × the largest layer's input map",
            memory["command"],
        ],
    ]
    for width, name in WIDTHS.items():
        step = overhead[f"step at width {width}"]
        whole = f"{signed(step['step_percent'], 1)} ± {step['step_error_percent']:.1f} %"
        measured = (
            f"+{step['multiplication_percent']:.2f} % for the multiplication (whole steps: {whole}); with the paper's "
            f"schedules at most +{max(step['schedules_percent'].values()):.2f} %"
        )
        cells.append([f"a training step of VGG-16 at {name}", measured, step["command"]])
    for width, name in WIDTHS.items():
        live = overhead[f"live training at width {width}"]
        what = f"a whole training of VGG-16 at {name} that measures live, with the appendix' schedule"
        measured = f"{signed(live['training_percent'])} ± {live['scaled_error_percent']:.2f} % of the processor time"
        cells.append([what, measured, live["command"]])
    return table(("", "measured", "command"), [[*row, f"`{used}`"] for *row, used in cells])


def cost_line(overhead: dict[str, Any], cost: dict[str, Any]) -> str:
    """What scaling and the branches of its rivals cost, for the README."""
    step, ratios = overhead["step at width 0.25"], {method: step_ratio(cost, method) for method in BRANCHED}
    rivals = ", ".join(f"{method} {ratio:.1f}" for method, ratio in ratios.items())
    return (
        f"**Cost**: a training step takes +{step['multiplication_percent']:.2f} % for the multiplication, and at most "
        f"+{max(step['schedules_percent'].values()):.2f} % with the paper's updates (VGG-16, 2 CPU cores); with "
        f"branches, a step takes a multiple ({rivals} ×)."
    )


def overhead_fact(overhead: dict[str, Any]) -> str:
    """The overhead of a step, for the first page."""
    step = overhead["step at width 0.25"]
    return (
        f"**+{step['multiplication_percent']:.2f} %**\n\n"
        "time of a training step, VGG-16 at ¼ width, 2 CPU cores; at most "
        f"{max(step['schedules_percent'].values()):.2f} % with the updates of the paper's schedules"
    )


# The pages.


def blocks(studies: Sequence[StudyResults]) -> dict[str, str]:
    """The text of every marked place, by name."""
    rows = compared_rows(studies)
    cost, overhead = (json.loads(path.read_text()) for path in (COST, OVERHEAD))
    return {
        "overhead": overhead_table(overhead),
        "cost-line": cost_line(overhead, cost),
        "overhead-fact": overhead_fact(overhead),
        "front": rows_table(front_rows(rows), GAINS),
        "gains": rows_table(main_rows(rows), GAINS),
        "controls": controls_table(rows),
        "control": control_sentence(studies),
        "methods": methods_table(rows, cost),
        "quantized": quantized_table(studies),
        "headline": headline(rows),
        "provenance": provenance(studies),
        "live": live_sentence(studies),
        "regimes": regimes_table(studies),
        "length": length_sentence(rows),
        "length-table": rows_table(length_rows(rows), LENGTH),
        "fitted": fitted_table(studies),
        "fit": rows_table(fit_rows(rows), FIT),
        "fit-fact": fit_fact(rows),
        **{name: arms_table(name, studies) for name in ("adaptive", "sources", "segmentation", "pose")},
        **{f"cost-{method.lower()}": cost_sentence(cost, method) for method in BRANCHED},
    }


def quoted(studies: Sequence[StudyResults]) -> dict[str, Any]:
    """The gain on CIFAR-100, for the demonstration."""
    row = front_rows(compared_rows(studies))[0]
    each = row.comparison
    numbers = {
        "plain": row.plain.mean,
        "scaled": row.scaled.mean,
        "difference": each.difference,
        "low": each.low,
        "high": each.high,
    }
    return {
        "dataset": row.dataset,
        "network": row.network,
        "epochs": row.epochs,
        "seeds": each.n,
        **{name: None if value is None else round(value, 2) for name, value in numbers.items()},
        "command": f"spatialgrad study run {row.study} --scale desk --seeds {each.n} --only {shlex.join(row.arms)}",
    }


def fill(text: str, filled: dict[str, str]) -> str:
    """A page with its marked places replaced."""
    return MARKED.sub(lambda found: f"{found['begin']}\n{filled[found['name']]}{found['end']}", text)


def draw(studies: Sequence[StudyResults]) -> None:
    """Draw the pictures."""
    rows, cost, controls = compared_rows(studies), json.loads(COST.read_text()), control_values(studies)
    gains = [(f"{row.dataset}\n{row.network}, {row.epochs} epochs", row.comparison) for row in main_rows(rows)]
    draw_results(gains, {method: step_ratio(cost, method) for method in cost["methods"] if method != "plain"})
    draw_fit(
        [(row.dataset.partition(",")[0], row.plain_training, row.comparison) for row in distinct_rows(rows)],
    )
    draw_length(
        [(row.epochs, row.comparison, row.plain_training, row.scaled_training) for row in length_rows(rows)],
    )
    draw_front({label: list(controls[arm].values()) for label, arm in FRONT.items() if arm in controls})


def main() -> None:
    """Fill the pages and draw the pictures."""
    studies = load_archived()
    filled = blocks(studies)
    for page in PAGES:
        page.write_text(fill(page.read_text(), filled))
    QUOTED.write_text(json.dumps(quoted(studies), indent=1, ensure_ascii=False) + "\n")
    draw(studies)
    print(filled["front"])


def with_interval(comparison: Comparison) -> str:
    """A difference with its 95 % interval, if there is one."""
    return f"{signed(comparison.difference)} {interval(comparison)}".strip()


def marked(comparison: Comparison) -> str:
    """The same, in bold if it is significant."""
    text = with_interval(comparison)
    return f"**{text}**" if comparison.supported else text


def _named(name: str, studies: Sequence[StudyResults]) -> list[tuple[ArmResults, Comparison | None]]:
    """The arms of a study with their comparisons; none if it is not archived."""
    return [pair for study in studies if study.record.name == name for pair in compared_arms(study)]


def table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = ["".join(f"| {cell} " if cell != "" else "| " for cell in row) + "|" for row in (titles, *rows)]
    return "\n".join([lines[0], "|---" * len(titles) + "|", *lines[1:]])


def _dataset(arm: ArmResults) -> str:
    if arm.record.config.data.name.startswith("folder:"):
        return arm.record.group["Dataset"]  # an archive does not say what it is a part of
    return " / ".join(sorted({result.dataset for result in arm.results}))


def _network(model: ModelConfig) -> str:
    width = FRACTIONS.get(model.width, f"{model.width:g}")
    return NETWORKS.get(model.name, model.name) + ("" if model.width == 1 else f", {width} width")


if __name__ == "__main__":
    main()
