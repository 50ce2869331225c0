"""Every number of accuracy and cost in README and docs follows from the files in results/."""

import json
import re
import runpy
import statistics
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from scipy import stats

from spatialgrad.studies.archive import archives_in, read_archive
from spatialgrad.train import TrainConfig
from support.report import arm, record, write_run

ROOT = Path(__file__).parents[1]
ARCHIVES = archives_in(ROOT / "results")


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "docs" / "results.py"))


@pytest.fixture(scope="module")
def studies(script):
    return script["load_archived"]()


@pytest.fixture(scope="module")
def filled(script, studies):
    return script["blocks"](studies)


def test_the_pages_are_what_make_results_writes(script, filled):
    for page in script["PAGES"]:
        text = page.read_text()
        assert script["MARKED"].search(text), f"{page} has no place for a table"
        assert script["fill"](text, filled) == text, f"{page} does not follow from results/: run make results"


def test_a_changed_number_is_replaced(script, filled):
    text = (ROOT / "README.md").read_text()
    mean = numbers(cells(filled["front"])[0][4])[0]
    changed = text.replace(f"{mean:.2f}", "99.99")
    assert script["fill"](changed, filled) == text != changed


def test_the_demonstration_quotes_what_was_measured(script, studies):
    assert json.loads(script["QUOTED"].read_text()) == script["quoted"](studies)


# The archives read by hand, without the statistics of the report.


class ByHand(NamedTuple):
    """An arm: values by seed, in per cent."""

    group: tuple[str, ...]
    label: str
    is_reference: bool
    config: TrainConfig
    test: dict[int, float]
    training: dict[int, float]


@cache
def arms_of(study):
    """The arms of an archived study that have finished runs."""
    archive, found = read_archive(ROOT / "results" / f"{study}-desk.jsonl"), []
    metric = archive.record.metric
    for each in archive.record.arms:
        runs = {run.seed: archive.runs.get(run.folder) for run in each.runs}
        runs = {seed: run for seed, run in runs.items() if run is not None and run.result is not None}
        test = {seed: 100 * run.result.test[metric] for seed, run in runs.items() if metric in run.result.test}
        training = {seed: 100 * runs[seed].metrics[-1].get(f"train_{metric}", 0) for seed in test}
        if each.shown and test:
            found.append(ByHand(tuple(each.group.values()), each.label, each.reference, each.config, test, training))
    return found


def pairs_of(*names):
    """The arms of some studies with plain training of the same group: (plain, arm)."""
    found = []
    for name in names:
        for each in arms_of(name):
            plain = [other for other in arms_of(name) if other.is_reference and other.group == each.group]
            found += [(other, each) for other in plain if other is not each]
    return found


def numbers(text):
    return [float(each.replace("−", "-")) for each in re.findall(r"[+−]?\d+\.\d+", text)]


def cells(table):
    """The cells of a Markdown table, row by row."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def spread_of(values):
    """Mean and, of several values, standard deviation."""
    return [statistics.fmean(values), *([statistics.stdev(values)] if len(values) > 1 else [])]


def interval_of(scaled, plain):
    """Mean of the paired differences and, with several seeds, its 95 % interval."""
    seeds = sorted(plain.keys() & scaled.keys())
    differences = [scaled[seed] - plain[seed] for seed in seeds]
    mean = statistics.fmean(differences)
    if len(seeds) < 2:
        return [mean]
    half = stats.t.ppf(0.975, len(seeds) - 1) * statistics.stdev(differences) / len(seeds) ** 0.5
    return [mean, mean - half, mean + half]


def rounded(values, digits=2):
    return pytest.approx(values, abs=0.51 * 10**-digits)


@cache
def scaled_pairs():
    """Every comparison of scaling with plain training."""
    names = [path.stem.removesuffix("-desk") for path in ARCHIVES]
    return [pair for pair in pairs_of(*names) if "SGS" in pair[1].label]


@pytest.mark.parametrize("name", ["front", "gains", "length-table"])
def test_rows_of_gains(filled, name):
    rows = cells(filled[name])
    assert rows
    for *_, epochs, seeds, plain, scaled, gain, _ in rows:
        expected = [
            (str(arm.config.budget.epochs), str(len(arm.test.keys() & base.test.keys())), *map(rounded, (
                [*spread_of(base.test.values()), round(statistics.fmean(base.training.values()), 1)],
                [*spread_of(arm.test.values()), round(statistics.fmean(arm.training.values()), 1)],
                interval_of(arm.test, base.test),
            )))
            for base, arm in scaled_pairs()
        ]  # fmt: skip
        assert (epochs, seeds, *map(numbers, (plain, scaled, gain))) in expected


@pytest.mark.parametrize("name", ["adaptive", "sources", "segmentation", "pose"])
def test_tables_of_arms(filled, name):
    expected = {(*each.group, each.label): each for each in arms_of(name)}
    rows = cells(filled[name])
    assert [tuple(row[:-3]) for row in rows] == list(expected)
    for *key, seeds, accuracy, gain in rows:
        each = expected[tuple(key)]
        (plain,) = (other for other in arms_of(name) if other.is_reference and other.group == each.group)
        assert int(seeds) == len(each.test)
        assert numbers(accuracy) == rounded(spread_of(each.test.values()))
        assert numbers(gain) == rounded([] if each is plain else interval_of(each.test, plain.test))


def test_controls(filled):
    plain, *others = arms_of("controls")
    first, *rows = cells(filled["controls"])
    assert (first[0], first[-1]) == ("plain", "")
    assert sorted(row[0] for row in rows) == sorted(each.label for each in others)
    for label, seeds, training, accuracy, gain in rows:
        (each,) = (each for each in others if each.label == label)
        assert int(seeds) == len(each.test)
        assert numbers(training) == rounded([statistics.fmean(each.training.values())], 1)
        assert numbers(accuracy) == rounded(spread_of(each.test.values()))
        assert numbers(gain) == rounded(interval_of(each.test, plain.test))
    scaled, shuffled = (next(e.test for e in others if e.label == label) for label in ("SGS", "SGS, G shuffled"))
    assert numbers(filled["control"]) == rounded([*interval_of(shuffled, plain.test), *interval_of(scaled, shuffled)])


def test_gains_over_the_fit(filled, script, studies):
    expected = []
    for base, each in pairs_of("cifar", "sensitivity", "datasets", "architectures", "regimes"):
        if each.config.method.name == "sgs":
            plain, test = (statistics.fmean(values.values()) for values in (base.training, base.test))
            changes = [interval_of(each.training, base.training), interval_of(each.test, base.test)]
            expected.append((plain - test, plain, *changes))
    expected.sort(key=lambda row: -row[0])
    for (_, _, _, *row), (gap, plain, *changes) in zip(cells(filled["fit"]), expected, strict=True):
        assert numbers(" ".join(row)) == rounded([plain, gap, *changes[0], *changes[1]])
    lowered = [-training[0] for *_, training, _ in expected if training[0] < 0]
    counted = [len(lowered), len(expected), sum(gain[0] > 0 for *_, gain in expected)]
    assert [
        int(each) for each in re.search(r"in (\d+) of (\d+) .* in (\d+)\.$", filled["fit-fact"]).groups()
    ] == counted
    assert numbers(filled["fit-fact"]) == rounded([min(lowered), max(lowered)])
    rows = script["compared_rows"](studies)
    distinct = script["distinct_rows"](rows)
    assert 17 < len(distinct) < len(rows)
    assert {str(row.configs) for row in distinct} == {str(row.configs) for row in rows}


def test_gains_by_length(filled):
    pairs = [
        pair
        for pair in pairs_of("cifar", "sensitivity")
        if "SGS" in pair[1].label and pair[1].config.data.name == "cifar100"
    ]
    pairs.sort(key=lambda pair: pair[1].config.budget.epochs)
    expected = [number for base, each in pairs for number in interval_of(each.test, base.test)]
    first, last = (
        {seed: each.test[seed] - base.test[seed] for seed in each.test} for base, each in (pairs[0], pairs[-1])
    )
    assert numbers(filled["length"]) == rounded([*expected, *interval_of(last, first)])
    counted = [(each.config.budget.epochs, len(each.test)) for _, each in pairs]
    assert [(int(a), int(b)) for a, b in re.findall(r"in (\d+) epochs \((\d+) seeds\)", filled["length"])] == counted


def test_live(filled):
    (plain, live) = arms_of("live")
    means = [number for each in (plain, live) for number in spread_of(each.test.values())]
    assert numbers(filled["live"]) == rounded([*means, *interval_of(live.test, plain.test)])


def test_regimes(filled):
    expected = {each.group: interval_of(each.test, plain.test) for plain, each in pairs_of("regimes")}
    columns = [cell.strip().removesuffix(" images") for cell in filled["regimes"].splitlines()[0].strip("|").split("|")]
    for steps, *row in cells(filled["regimes"]):
        for images, cell in zip(columns[1:], row, strict=True):
            assert numbers(cell) == rounded(expected.pop((images, steps), []))
    assert not expected


def test_methods(filled):
    """Accuracies, gains and costs, from the study of all methods, or Table 1's and the rivals' before it."""
    of_all = any(path.stem == "quantization-desk" for path in ARCHIVES)
    pairs = pairs_of("quantization") if of_all else pairs_of("rivals", "cifar")
    expected = {}
    for plain, each in pairs:
        if each.config.data.name == "cifar100":
            label = each.label.removesuffix(" (ours)")
            expected[label] = (len(each.test), spread_of(each.test.values()), interval_of(each.test, plain.test))
            expected["plain"] = max(
                (len(plain.test), spread_of(plain.test.values()), []),
                expected.get("plain", (0,)),
                key=lambda row: row[0],
            )
    cost = json.loads((ROOT / "results" / "cost.json").read_text())["methods"]
    for method, seeds, accuracy, gain, ratio, _ in cells(filled["methods"]):
        own = (int(seeds), numbers(accuracy), numbers(gain)) if seeds else None
        assert own == (
            None if method not in expected else (expected[method][0], *map(rounded, expected.pop(method)[1:]))
        )
        seconds = zip(cost[method]["seconds"], cost["plain"]["seconds"], strict=True)
        assert numbers(ratio) == rounded([statistics.median(a / b for a, b in seconds)])
    assert not expected


def fitted(folder, script, curves):
    """The table of lengths for one setting: errors in per cent on training and test images, and hours, by epochs."""
    titles = ("Dataset", "Training images", "Network", "Epochs")
    arms = []
    for epochs, (training, test, hours) in curves.items():
        group = dict(zip(titles, ("Made up", "100", "VGG-11", str(epochs)), strict=True))
        arms.append(arm(f"a{epochs}", "Plain", group, (0,), reference=True, epochs=epochs))
        write_run(folder / f"runs/a{epochs}/seed0", 1 - test / 100, config=arms[-1].config, seconds=3600 * hours + 11)
        last = {"step": 1, "epoch": epochs - 1, "lr": 0.1, "train_accuracy": 1 - training / 100, "test_accuracy": 0.5}
        (folder / f"runs/a{epochs}/seed0/metrics.jsonl").write_text(json.dumps(last) + "\n")
    record(arms, name="fitted", seeds=(0,), figures=()).write(folder)
    return [row[3:] for row in cells(script["fitted_table"]([script["load_results"](folder)]))]


@pytest.mark.parametrize(
    ("curves", "rule"),
    [
        ({60: (30, 40, 0.2), 120: (20, 40, 0.4), 240: (5, 41, 0.8)}, ["does not fit", "**chosen**: it fits", ""]),
        ({60: (30, 40, 0.2), 120: (25, 40, 0.4)}, ["does not fit", "does not fit yet"]),
        ({60: (30, 40, 0.3), 120: (25, 40, 0.6)}, ["does not fit", "**chosen**: twice as many take more than an hour"]),
    ],
)
def test_the_rule_for_lengths(tmp_path, script, curves, rule):
    rows = fitted(tmp_path, script, curves)
    assert [row[-1] for row in rows] == rule
    expected = [[str(epochs), *(f"{each:.1f}" for each in curve[:2])] for epochs, curve in curves.items()]
    assert [row[:3] for row in rows] == expected


def test_without_archives_the_pages_say_so(script, studies):
    few = [study for study in studies if study.record.name == "sensitivity"]
    filled = script["blocks"](few)
    for name in ("controls", "control", "live", "regimes", "fitted", "adaptive", "quantized"):
        assert "not measured yet" in filled[name], name


def test_archived_runs_are_whole_small_and_without_paths(studies):
    for study in studies:
        assert {run.state for run in study.runs} <= {"finished", "waiting"}, study.folder
    for path in ARCHIVES:
        archive = read_archive(path)
        for name, run in archive.runs.items():
            if run.result is None:
                continue
            assert run.config.seed == run.result.seed == int(name.rpartition("seed")[2])
            last = run.metrics[-1][f"test_{run.result.metric}"]
            assert last == pytest.approx(run.result.trained[run.result.metric], rel=1e-5)
            assert re.fullmatch("[0-9a-f]{40}", run.environment["commit"])
            assert run.identity.data is not None
            assert name in archive.record.runs
        text = path.read_text()
        assert not re.search(r'"/|[A-Z]:\\\\|~/', text)
        assert max(map(len, text.splitlines()[1:])) < 3_000
    assert sum(path.stat().st_size for path in (ROOT / "results").rglob("*.json*")) < 700_000
