"""Fill the tables of README and docs, and draw their pictures, from the runs that are archived in results/.

Run: make results (or python docs/results.py, with spatialgrad[all]). Pages mark the place of a table by two comments,
`<!-- results: NAME -->` and `<!-- end of results -->`; what is between them is replaced.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pictures import draw_fit, draw_front, draw_results

from spatialgrad.report.figures.gains import GainPoint
from spatialgrad.report.load import load_results
from spatialgrad.report.provenance import command, progress
from spatialgrad.report.results import ArmResults, StudyResults
from spatialgrad.report.statistics import Comparison, Summary, compare_paired, correct, summarize
from spatialgrad.report.tables.cells import metric_name, p_value, signed, spread
from spatialgrad.report.tables.int8 import int8_tables
from spatialgrad.report.tables.results import compare_all
from spatialgrad.studies.archive import archives_in
from spatialgrad.studies.registry import STUDIES

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
METHODS = {
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
NOT_YET = "not measured yet"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method on a data set and a network, beside plain training."""

    study: str
    label: str
    dataset: str
    network: str
    epochs: int
    method: str
    plain: Summary
    scaled: Summary
    comparison: Comparison
    gains: dict[int, float]
    """By seed, in percentage points."""
    plain_training: Summary
    """Of the accuracy on training images in the last epoch."""
    scaled_training: Summary
    training: Comparison
    """The same for that accuracy, without a correction."""

    @property
    def fits(self) -> bool:
        """Whether the error of plain training on training images is at most half of its error on test images."""
        return 2 * (100 - self.plain_training.mean) <= 100 - self.plain.mean

    @property
    def gap(self) -> float:
        """By how much plain training is better on training images than on test images."""
        return self.plain_training.mean - self.plain.mean


def load_archived() -> list[StudyResults]:
    """The archived studies, in the order in which `study list` has them; those that it no longer has come last."""

    def place(path: Path) -> int:
        name = path.stem.rsplit("-", 1)[0]
        return [*STUDIES, name].index(name)

    archives = sorted(archives_in(RESULTS), key=place)
    return [load_results(path) for path in archives]


def compared_rows(studies: Sequence[StudyResults]) -> list[Row]:
    """Every classification that was compared with plain training."""
    found = []
    for study in (each for each in studies if each.record.metric == "accuracy"):
        for arm, comparison in _with_comparisons(study):
            reference = study.reference(arm)
            if reference is None or comparison is None or reference.record.config.method.name != "baseline":
                continue
            plain, scaled = (summarize(list(each.values.values())) for each in (reference, arm))
            before, after = (_training_accuracies(each, study.record.metric) for each in (reference, arm))
            plain_training, scaled_training = (summarize(list(each.values())) for each in (before, after))
            training = compare_paired(after, before)
            if None in (plain, scaled, plain_training, scaled_training, training):
                continue
            seeds = arm.values.keys() & reference.values.keys()
            found.append(
                Row(
                    study=study.record.name,
                    label=arm.label,
                    dataset=_dataset(arm),
                    network=_network(arm),
                    epochs=arm.record.config.budget.epochs,
                    method=METHODS.get(name := arm.record.config.method.name, name),
                    plain=plain,
                    scaled=scaled,
                    comparison=comparison,
                    gains={seed: arm.values[seed] - reference.values[seed] for seed in seeds},
                    plain_training=plain_training,
                    scaled_training=scaled_training,
                    training=training,
                )
            )
    return found


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
    of = [row for row in rows if row.label.startswith("SGS") and row.method == "SGS"]
    lengths = sorted((row for row in of if row.study in ("sensitivity", "length")), key=lambda row: row.epochs)
    shown = ([row for row in lengths if row.fits] or lengths[-1:])[:1] + [row for row in of if row.study == "fitted"]
    corrected = correct([row.comparison for row in shown])
    return [replace(row, comparison=each) for row, each in zip(shown, corrected, strict=True) if each is not None]


# Tables and sentences, by the names that the pages use.


def gains_table(rows: Sequence[Row]) -> str:
    """Plain training and scaling, one row per data set and network."""
    cells = []
    for row in rows:
        each = row.comparison
        p = "" if each.holm is None else p_value(each.holm)
        setting = [row.dataset, row.network, str(row.epochs), str(each.n)]
        plain = f"{spread(row.plain)} ({row.plain_training.mean:.1f})"
        scaled = f"{spread(row.scaled)} ({row.scaled_training.mean:.1f})"
        cells.append([*setting, plain, scaled, _interval(each), p])
    titles = ["data set", "network", "epochs", "seeds", "plain (%)", "SGS (%)", "gain, 95 % interval", "p"]
    return _table(titles, cells)


def controls_table(rows: Sequence[Row]) -> str:
    """Every arm of the controls: accuracy on training and on test images, and the difference from plain training."""
    of = [row for row in rows if row.study == "controls"]
    first = max(of, key=lambda row: row.plain.n)
    cells = [["plain", str(first.plain.n), f"{first.plain_training.mean:.1f}", spread(first.plain), ""]]
    for row in of:
        scores = [f"{row.scaled_training.mean:.1f}", spread(row.scaled)]
        cells.append([row.label, str(row.comparison.n), *scores, _interval(row.comparison)])
    return _table(["training", "seeds", "training images (%)", "test images (%)", "difference, 95 % interval"], cells)


def control_sentence(studies: Sequence[StudyResults]) -> str:
    """What the same factors do at other positions."""
    values = _control_values(studies)
    plain, scaled, shuffled = (values[label] for label in (PLAIN, "SGS", SHUFFLED))
    worse, better = compare_paired(shuffled, plain), compare_paired(scaled, shuffled)
    assert worse is not None
    assert better is not None
    return (
        "**It matters where the factors of G are.** With the measured factors at shuffled positions, the network of "
        f"the picture is {with_interval(worse)} points from plain training; SGS is {with_interval(better)} points "
        f"above that ({worse.n} seeds)."
    )


def _control_values(studies: Sequence[StudyResults]) -> dict[str, dict[int, float]]:
    """Accuracy on test images by arm of the controls and seed."""
    return {arm.label: arm.values for arm, _ in _named("controls", studies)}


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
            own = [str(widest.n), spread(widest), ""]
        elif method in by_method:
            row = by_method[method]
            gain = with_interval(row.comparison)
            own = [str(row.comparison.n), spread(row.scaled), f"**{gain}**" if row.comparison.better else gain]
        else:
            own = ["", NOT_YET, ""]
        cells.append([method, *own, f"{step_ratio(cost, method):.2f} ×", f"{measured['parameters'] / 1e6:.1f} M"])
    gain = "gain over plain, 95 % interval"
    return _table(["method", "seeds", "accuracy (%)", gain, "time of a step", "training parameters"], cells)


def quantized_table(studies: Sequence[StudyResults]) -> str:
    """Every method in INT8: accuracy, the change by quantization, and the range of weights."""
    of = [study for study in studies if study.record.name == "quantization"]
    tables = [table for study in of for table in int8_tables(study, study.shown)]
    if not tables:
        return f"Accuracy in INT8: {NOT_YET}."
    (table,) = tables
    first = table.headers - 1  # without the group
    rows = [[" ".join(cell.lines) for cell in row[first:]] for row in table.rows]
    return _table([column.title.replace("\u00a0", " ") for column in table.columns[first:]], rows)


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
    of = [row for row in main_rows(rows) if row.study in ("cifar", "sensitivity")]
    of = sorted((row for row in of if row.dataset.startswith("CIFAR-100")), key=lambda row: row.epochs)
    gains = [f"{with_interval(row.comparison)} points in {row.epochs} epochs ({row.comparison.n} seeds)" for row in of]
    text = f"VGG-11 on the 20k/5k subset of CIFAR-100 gains {' and '.join(gains)}"
    growth = compare_paired(of[-1].gains, of[0].gains) if len(of) > 1 else None
    return text + (
        "." if growth is None else f"; paired by seed, the longer training gains {with_interval(growth)} more."
    )


def fit_table(rows: Sequence[Row]) -> str:
    """Every comparison of scaling, with the most overfitted plain network first."""
    cells = [
        [
            row.dataset,
            row.network,
            str(row.epochs),
            f"{row.plain_training.mean:.2f}",
            signed(row.gap),
            with_interval(row.training),
            with_interval(row.comparison),
        ]
        for row in sorted(_fitted(rows), key=lambda row: row.gap, reverse=True)
    ]
    titles = ["data set", "network", "epochs", "plain: training accuracy (%)", "minus test accuracy"]
    return _table([*titles, "SGS: change on training images", "change on test images"], cells)


def fit_fact(rows: Sequence[Row]) -> str:
    """In how many comparisons the accuracy on training images was lower, and that on test images higher."""
    of = _fitted(rows)
    if not of:
        return f"The accuracy on training images: {NOT_YET}."
    changes = [row.training.difference for row in of]
    lower, higher = [-each for each in changes if each < 0], sum(row.comparison.difference > 0 for row in of)
    return (
        f"Scaling lowered the accuracy on *training* images in {len(lower)} of {len(of)} comparisons, by "
        f"{min(lower):.2f} to {max(lower):.2f} points, and raised it on test images in {higher}."
    )


def fit_points(rows: Sequence[Row]) -> list[GainPoint]:
    """Every method that was compared with plain training of the same number of epochs."""
    return [
        GainPoint(dataset=row.dataset.partition(",")[0], training=row.plain_training.mean, comparison=row.comparison)
        for row in rows
    ]


def live_sentence(studies: Sequence[StudyResults]) -> str:
    """Accuracy with scalings that are measured live, beside the paper's procedure."""
    arms = _named("live", studies)
    known = [(summarize(list(arm.values.values())), comparison) for arm, comparison in arms]
    if len(known) != 2 or None in (known[0][0], *known[1]):
        return f"Accuracy with live scalings: {NOT_YET}."
    (before, _), (after, comparison) = known
    return (
        "Accuracy (study `live` at desk scale: VGG-11 at a quarter of its width, 20,000 images of CIFAR-100, "
        f"30 epochs, {comparison.n} seeds): {spread(before)} % with `update(loader)`, {spread(after)} % live; "
        f"difference, paired by seed, {_interval(comparison)}."
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
            row[images] = _interval(comparison) + (f" ({comparison.n} seeds)" if comparison.n > fewest else "")
    return _table(
        ["training steps", *(f"{images} images" for images in columns)],
        [[steps, *(row.get(images, NOT_YET) for images in columns)] for steps, row in gains.items()],
    )


def arms_table(name: str, studies: Sequence[StudyResults]) -> str:
    """Every arm of a study that has finished runs, with its gain over the arm it is compared with."""
    arms = [(arm, comparison) for arm, comparison in _named(name, studies) if arm.values]
    if not arms:
        return f"The study `{name}`: {NOT_YET}."
    (metric,) = (study.record.metric for study in studies if study.record.name == name)
    titles = [*(title.lower() for title in arms[0][0].record.group), "training", "seeds"]
    cells = [[*arm.group, arm.label, *_measured(arm, comparison)] for arm, comparison in arms]
    return _table([*titles, f"{metric_name(metric)} (%)", "gain over plain, 95 % interval"], cells)


def provenance(studies: Sequence[StudyResults]) -> str:
    """The commands, the machines and the pages of the archived studies."""
    lines = []
    for study in studies:
        name = f"{study.record.name}-{study.record.scale}"
        report = f'<a href="reports/{name}/index.html">report</a>'
        lines.append(f"- **{study.record.title}**: {progress(study)}; {report}, `{command(study)}`")
    return "\n".join(lines)


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
    return _table(["", "measured", "command"], [[*row, f"`{used}`"] for *row, used in cells])


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
        "front": gains_table(front_rows(rows)),
        "gains": gains_table(main_rows(rows)),
        "controls": controls_table(rows),
        "control": control_sentence(studies),
        "methods": methods_table(rows, cost),
        "quantized": quantized_table(studies),
        "headline": headline(rows),
        "provenance": provenance(studies),
        "live": live_sentence(studies),
        "regimes": regimes_table(studies),
        "length": length_sentence(rows),
        "fit": fit_table(rows),
        "fit-fact": fit_fact(rows),
        **{name: arms_table(name, studies) for name in ("adaptive", "sources", "segmentation", "pose")},
        **{f"cost-{method.lower()}": cost_sentence(cost, method) for method in BRANCHED},
    }


def quoted(studies: Sequence[StudyResults]) -> dict[str, Any]:
    """The gain on CIFAR-100, for the demonstration."""
    row = front_rows(compared_rows(studies))[0]
    each = row.comparison
    return {
        "dataset": row.dataset,
        "network": row.network,
        "epochs": row.epochs,
        "seeds": each.n,
        "plain": round(row.plain.mean, 2),
        "scaled": round(row.scaled.mean, 2),
        "difference": round(each.difference, 2),
        "low": None if each.low is None else round(each.low, 2),
        "high": None if each.high is None else round(each.high, 2),
        "command": f"spatialgrad study run {row.study} --scale desk --seeds {each.n}",
    }


def fill(text: str, filled: dict[str, str]) -> str:
    """A page with its marked places replaced."""
    return MARKED.sub(lambda found: f"{found['begin']}\n{filled[found['name']]}{found['end']}", text)


def main() -> None:
    """Fill the pages and draw the pictures."""
    studies = load_archived()
    filled, rows, cost = blocks(studies), compared_rows(studies), json.loads(COST.read_text())
    for page in PAGES:
        page.write_text(fill(page.read_text(), filled))
    QUOTED.write_text(json.dumps(quoted(studies), indent=1, ensure_ascii=False) + "\n")
    gains = [(f"{row.dataset}\n{row.network}, {row.epochs} epochs", row.comparison) for row in main_rows(rows)]
    draw_results(gains, {method: step_ratio(cost, method) for method in cost["methods"] if method != "plain"})
    draw_fit(fit_points(rows))
    draw_front({label: list(_control_values(studies)[arm].values()) for label, arm in FRONT.items()})
    print(filled["front"])


def with_interval(comparison: Comparison) -> str:
    """A difference with its 95 % interval, if there is one."""
    if comparison.low is None or comparison.high is None:
        return signed(comparison.difference)
    return f"{signed(comparison.difference)} [{signed(comparison.low)}, {signed(comparison.high)}]"


def _interval(comparison: Comparison) -> str:
    """The same, in bold if it is significant."""
    text = with_interval(comparison)
    return f"**{text}**" if comparison.supported else text


def _fitted(rows: Sequence[Row]) -> list[Row]:
    """The rows of the main table and those of the study of regimes."""
    return [*main_rows(rows), *(row for row in rows if row.study == "regimes")]


def _with_comparisons(study: StudyResults) -> list[tuple[ArmResults, Comparison | None]]:
    compared = compare_all(study)
    return [(arm, None if arm.record.reference else compared[arm.record.key]) for arm in study.shown]


def _named(name: str, studies: Sequence[StudyResults]) -> list[tuple[ArmResults, Comparison | None]]:
    """The arms of a study with their comparisons; none if it is not archived."""
    return next((_with_comparisons(study) for study in studies if study.record.name == name), [])


def _measured(arm: ArmResults, comparison: Comparison | None) -> list[str]:
    """Number of seeds, mean with deviation, and gain."""
    accuracy = summarize(list(arm.values.values()))
    assert accuracy is not None
    return [str(accuracy.n), spread(accuracy), "" if comparison is None else _interval(comparison)]


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["".join(f"| {cell} " if cell else "| " for cell in row) + "|" for row in (titles, *rows)]
    return "\n".join([lines[0], "|---" * len(titles) + "|", *lines[1:]])


def _training_accuracies(arm: ArmResults, metric: str) -> dict[int, float]:
    """The metric on training images in the last epoch, by seed, of the finished runs."""
    curves = {run.seed: run.curves[f"train_{metric}"][1] for run in arm.runs if run.value is not None}
    return {seed: values[-1] for seed, values in curves.items() if values}


def _dataset(arm: ArmResults) -> str:
    if arm.record.config.data.name.startswith("folder:"):
        return arm.record.group["Dataset"]  # an archive does not say what it is a part of
    return " / ".join(sorted({result.dataset for result in arm.results}))


def _network(arm: ArmResults) -> str:
    model = arm.record.config.model
    width = FRACTIONS.get(model.width, f"{model.width:g}")
    return NETWORKS.get(model.name, model.name) + ("" if model.width == 1 else f", {width} width")


if __name__ == "__main__":
    main()
