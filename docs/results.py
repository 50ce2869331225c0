"""Fill the tables and draw the picture of accuracy and cost, from the runs that are archived in results/.

Run: make results (or python docs/results.py, with spatialgrad[all]). Pages mark the place of a table by two comments,
`<!-- results: NAME -->` and `<!-- end of results -->`; what is between them is replaced.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results_cost import cost_sentence, overhead_fact, overhead_table, ratio
from results_fit import fit_fact, fit_table, length_sentence, training_accuracies
from results_own import (
    arms_table,
    live_sentence,
    provenance,
    regimes_table,
    with_interval,
)
from results_picture import draw

from spatialgrad.report.load import load_results
from spatialgrad.report.results import ArmResults, StudyResults
from spatialgrad.report.statistics import Comparison, Summary, compare_paired, summarize
from spatialgrad.report.tables.cells import p_value, signed, spread
from spatialgrad.report.tables.results import compare_all
from spatialgrad.studies.archive import archives_in
from spatialgrad.studies.registry import STUDIES

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
BRANCHED = ("ACB", "RepVGG", "DBB", "DyRep")
PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / name for name in ("index.md", "results.md", "methods/sgs.md")),
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
    "dbb": "DBB",
    "dyrep": "DyRep",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method on a data set and a network, beside plain training."""

    study: str
    group: tuple[str, ...]
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
    training: Comparison
    """The same for that accuracy, without a correction."""

    @property
    def gap(self) -> float:
        """By how much plain training is better on training images than on test images."""
        return self.plain_training.mean - self.plain.mean


def load_archived() -> list[StudyResults]:
    """The archived studies, in the order in which `study list` has them."""
    order = list(STUDIES)
    archives = sorted(archives_in(RESULTS), key=lambda path: order.index(path.stem.rsplit("-", 1)[0]))
    return [load_results(path) for path in archives]


def rows(studies: list[StudyResults]) -> list[Row]:
    """Every classification that was compared with plain training."""
    found = []
    for study in (each for each in studies if each.record.metric == "accuracy"):
        compared = compare_all(study)
        for arm in study.shown:
            reference, comparison = study.reference(arm), compared[arm.record.key]
            if reference is None or comparison is None or reference.record.config.method.name != "baseline":
                continue
            plain, scaled = (summarize(list(each.values.values())) for each in (reference, arm))
            before, after = (training_accuracies(each, study.record.metric) for each in (reference, arm))
            plain_training, training = summarize(list(before.values())), compare_paired(after, before)
            if plain is None or scaled is None or plain_training is None or training is None:
                continue
            found.append(
                Row(
                    study=study.record.name,
                    group=arm.group,
                    label=arm.record.label,
                    dataset=_dataset(arm),
                    network=_network(arm),
                    epochs=arm.record.config.budget.epochs,
                    method=METHODS.get(name := arm.record.config.method.name, name),
                    plain=plain,
                    scaled=scaled,
                    comparison=comparison,
                    gains={
                        seed: value - reference.values[seed]
                        for seed, value in arm.values.items()
                        if seed in reference.values
                    },
                    plain_training=plain_training,
                    training=training,
                )
            )
    return found


def gains_table(found: list[Row]) -> str:
    """Plain training and scaling, one row per data set and network."""
    lines = [
        "| data set | network | epochs | seeds | plain (%) | SGS (%) | gain, 95 % interval | p |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in _gains(found):
        each = row.comparison
        lines.append(
            f"| {row.dataset} | {row.network} | {row.epochs} | {each.n} | {spread(row.plain)} | {spread(row.scaled)} "
            f"| {_bold(with_interval(each), each.supported)} | {_p(each)} |"
        )
    return "\n".join(lines)


def methods_table(found: list[Row], cost: dict[str, Any]) -> str:
    """Every method on CIFAR-100 for the same number of epochs, with what a step of it costs."""
    rivals = [row for row in found if row.study == "rivals"]
    cifar = [row for row in found if row.study == "cifar" and row.dataset.startswith("CIFAR-100")]
    of = [*(row for row in rivals if row.label == row.method), *cifar]
    lines = [
        "| method | seeds | accuracy (%) | gain over plain, 95 % interval | time of a step | training parameters |",
        "|---|---|---|---|---|---|",
    ]
    by_method = {row.method: row for row in of}
    for method in cost["methods"]:
        measured = f"{ratio(cost, method):.2f} × | {cost['methods'][method]['parameters'] / 1e6:.1f} M"
        if method == "plain" and of:
            widest = max(of, key=lambda row: row.plain.n)
            lines.append(f"| plain | {widest.plain.n} | {spread(widest.plain)} | | {measured} |")
        elif method in by_method:
            row = by_method[method]
            lines.append(
                f"| {method} | {row.comparison.n} | {spread(row.scaled)} "
                f"| {_bold(with_interval(row.comparison), row.comparison.better)} | {measured} |"
            )
        else:
            lines.append(f"| {method} | | not measured yet | | {measured} |")
    return "\n".join(lines)


def headline(found: list[Row]) -> str:
    """The gain on CIFAR-100, for the first page."""
    row = _headline_row(found)
    each = row.comparison
    return (
        f"**{signed(each.difference)} points**\n\n"
        f"{row.dataset}: {row.plain.mean:.2f} → {row.scaled.mean:.2f} % ({row.network}, 30 epochs, {each.n} seeds; 95 %"
        f" interval {signed(each.low or 0)} to {signed(each.high or 0)})"
    )


def quoted(studies: list[StudyResults]) -> dict[str, Any]:
    """The gain on CIFAR-100, for the demonstration."""
    row = _headline_row(rows(studies))
    each = row.comparison
    study = next(study for study in studies if study.record.name == row.study)
    return {
        "dataset": row.dataset,
        "network": row.network,
        "epochs": 30,
        "seeds": each.n,
        "plain": round(row.plain.mean, 2),
        "scaled": round(row.scaled.mean, 2),
        "difference": round(each.difference, 2),
        "low": None if each.low is None else round(each.low, 2),
        "high": None if each.high is None else round(each.high, 2),
        "command": f'spatialgrad study run {study.record.name} --scale desk --seeds {each.n} --only "cifar-100 origin" '
        '"cifar-100 sgs"',
    }


def blocks(studies: list[StudyResults]) -> dict[str, str]:
    """The text of every marked place, by name."""
    found, cost, overhead = rows(studies), json.loads(COST.read_text()), json.loads(OVERHEAD.read_text())
    return {
        "overhead": overhead_table(overhead),
        "overhead-fact": overhead_fact(overhead),
        "gains": gains_table(found),
        "methods": methods_table(found, cost),
        "headline": headline(found),
        "provenance": provenance(studies),
        "live": live_sentence(studies),
        "regimes": regimes_table(studies),
        "length": length_sentence(_gains(found)),
        "fit": fit_table(_fits(found)),
        "fit-fact": fit_fact(_fits(found)),
        **{name: arms_table(name, studies) for name in ("adaptive", "sources", "segmentation", "pose")},
        **{f"cost-{method.lower()}": cost_sentence(cost, method) for method in BRANCHED},
    }


def fill(text: str, filled: dict[str, str]) -> str:
    """A page with its marked places replaced."""
    return MARKED.sub(lambda found: f"{found['begin']}\n{filled[found['name']]}{found['end']}", text)


def main() -> None:
    """Fill the pages and draw the picture."""
    studies = load_archived()
    filled = blocks(studies)
    for page in PAGES:
        page.write_text(fill(page.read_text(), filled))
    QUOTED.write_text(json.dumps(quoted(studies), indent=1, ensure_ascii=False) + "\n")
    cost = json.loads(COST.read_text())
    gains = [(f"{row.dataset}\n{row.network}, {row.epochs} epochs", row.comparison) for row in _gains(rows(studies))]
    draw(gains, {method: ratio(cost, method) for method in cost["methods"] if method != "plain"})
    print(filled["gains"])


def _gains(found: list[Row]) -> list[Row]:
    """The rows of the main table: scaling on a data set or a network, with the settings of the recipe.

    Those of one data set stand together, and in them those of one network.
    """
    studies = ("cifar", "sensitivity", "datasets", "architectures")
    of = [row for row in found if row.method == "SGS" and row.study in studies]
    datasets, networks = ([getattr(row, name) for row in of] for name in ("dataset", "network"))
    return sorted(of, key=lambda row: (datasets.index(row.dataset), networks.index(row.network), row.epochs))


def _fits(found: list[Row]) -> list[Row]:
    """The rows of the main table and those of the study of regimes."""
    return [*_gains(found), *(row for row in found if row.study == "regimes")]


def _headline_row(found: list[Row]) -> Row:
    return next(row for row in _gains(found) if row.study == "cifar" and row.dataset.startswith("CIFAR-100"))


def _dataset(arm: ArmResults) -> str:
    if arm.record.config.data.name.startswith("folder:"):
        return arm.record.group["Dataset"]  # an archive does not say what it is a part of
    names = {str(run.result["dataset"]) for run in arm.runs if run.result.get("dataset")}
    return " / ".join(sorted(names))


def _network(arm: ArmResults) -> str:
    model = arm.record.config.model
    width = FRACTIONS.get(model.width, f"{model.width:g}")
    return NETWORKS.get(model.name, model.name) + ("" if model.width == 1 else f", {width} width")


def _p(comparison: Comparison) -> str:
    return "" if comparison.holm is None else p_value(comparison.holm)


def _bold(text: str, wanted: bool) -> str:
    return f"**{text}**" if wanted else text


if __name__ == "__main__":
    main()
