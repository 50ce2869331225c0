"""Every number of accuracy and cost in README and docs follows from the files in results/."""

import json
import re
import runpy
import statistics
from functools import cache
from pathlib import Path

import pytest
from scipy import stats

from spatialgrad.studies.archive import archives_in, read_archive

ROOT = Path(__file__).parents[1]
ARCHIVES = archives_in(ROOT / "results")
ROW = re.compile(r"\| (?P<dataset>[^|]+) \| (?P<network>[^|]+) \| (?P<epochs>\d+) \| (?P<n>\d+) \| (?P<plain>[^|]+) "
                 r"\| (?P<scaled>[^|]+) \| (?P<gain>[^|]+) \| (?P<p>[^|]*) \|")  # fmt: skip


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


def test_a_changed_number_is_noticed(script, filled):
    text = (ROOT / "README.md").read_text()
    mean = ROW.search(text)["plain"]
    assert script["fill"](text.replace(mean, "99.99"), filled) == text


def test_the_demonstration_quotes_what_was_measured(script, studies):
    assert json.loads(script["QUOTED"].read_text()) == script["quoted"](studies)


def numbers(text):
    return [float(each.replace("−", "-")) for each in re.findall(r"[+−]?\d+\.\d+", text)]


@cache
def runs_of(study):
    """The finished runs of the arms of an archived study, by folder."""
    runs = read_archive(ROOT / "results" / f"{study}.jsonl").runs
    return {name: run for name, run in runs.items() if name.startswith("runs/") and run.is_finished}


def by_hand(training=False):
    """Final accuracies in per cent by study, images, network, epochs and method, from the files alone."""
    found = {}
    for study in (path.stem for path in ARCHIVES):
        for run in runs_of(study).values():
            config, result = run.config, run.result
            if config.task != "classification":
                continue
            place = (study, config.data.name, config.data.limit, config.model.name, config.model.width)
            values = found.setdefault((*place, config.budget.epochs), {}).setdefault(config.method.name, {})
            last = run.metrics[-1]["train_accuracy"] if training else result.test["accuracy"]
            values[config.seed] = 100 * last
    return found


def spread_by_hand(values):
    """Mean and, of several values, standard deviation."""
    return [statistics.fmean(values), *([statistics.stdev(values)] if len(values) > 1 else [])]


def interval_by_hand(scaled, plain):
    """Mean of the paired differences and, with several seeds, its 95 % interval, in per cent."""
    seeds = sorted(plain.keys() & scaled.keys())
    differences = [scaled[seed] - plain[seed] for seed in seeds]
    mean = statistics.fmean(differences)
    if len(seeds) < 2:
        return [mean]
    half = stats.t.ppf(0.975, len(seeds) - 1) * statistics.stdev(differences) / len(seeds) ** 0.5
    return [mean, mean - half, mean + half]


def test_rows_of_gains_recomputed_without_our_statistics():
    pages = ((ROOT / page).read_text() for page in ("README.md", "docs/results.md"))
    rows = [row for text in pages for line in text.splitlines() if (row := ROW.fullmatch(line))]
    rows = [row for row in rows if row["dataset"] != "data set"]
    assert len(rows) > 8
    groups = {place: group for place, group in by_hand().items() if {"baseline", "sgs"} <= group.keys()}
    for row in rows:
        matching = []
        for (*_, epochs), group in groups.items():
            plain, scaled = group["baseline"], group["sgs"]
            seeds = sorted(plain.keys() & scaled.keys())
            expected = interval_by_hand(scaled, plain)
            means = [statistics.fmean(plain.values()), statistics.fmean(scaled.values())]
            printed = [numbers(row["plain"])[0], numbers(row["scaled"])[0], *numbers(row["gain"])]
            if (int(row["epochs"]), int(row["n"]), len(printed)) == (epochs, len(seeds), 2 + len(expected)):
                matching.append(printed == pytest.approx([*means, *expected], abs=0.0051))
        assert any(matching), f"no runs in results/ give the row {row[0]}"


def final_values(study, key):
    """Final values of the metric in per cent by seed, by what `key` reads from the config."""
    found = {}
    for run in runs_of(study).values():
        found.setdefault(key(run.config), {})[run.config.seed] = 100 * run.result.test[run.result.metric]
    return found


def test_training_accuracies_recomputed_without_our_statistics(filled):
    studies = ("cifar-desk", "sensitivity-desk", "datasets-desk", "architectures-desk", "regimes-desk")
    expected, test = [], by_hand()
    for place, training in by_hand(training=True).items():
        if place[0] in studies and {"baseline", "sgs"} <= training.keys():
            plain, plain_test = (statistics.fmean(each["baseline"].values()) for each in (training, test[place]))
            changes = [interval_by_hand(each["sgs"], each["baseline"]) for each in (training, test[place])]
            expected.append((plain - plain_test, plain, place[-1], *changes))
    expected.sort(reverse=True)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in filled["fit"].splitlines()[2:]]
    for (_, _, epochs, *cells), (gap, plain, number, training, gain) in zip(rows, expected, strict=True):
        assert int(epochs) == number
        assert numbers(" ".join(cells)) == pytest.approx([plain, gap, *training, *gain], abs=0.0051)
    lowered = [-training[0] for *_, training, _ in expected if training[0] < 0]
    counted = [len(lowered), len(expected), sum(gain[0] > 0 for *_, gain in expected)]
    fact = filled["fit-fact"]
    assert [int(each) for each in re.search(r"in (\d+) of (\d+) .* in (\d+)\.$", fact).groups()] == counted
    assert numbers(fact) == pytest.approx([min(lowered), max(lowered)], abs=0.0051)


def test_gains_by_length_recomputed_without_our_statistics(filled):
    values = {
        place[-1]: (group["sgs"], group["baseline"])
        for place, group in by_hand().items()
        if place[:2] in (("cifar-desk", "cifar100"), ("sensitivity-desk", "cifar100"))
    }
    said = filled["length"]
    expected = [number for _, pair in sorted(values.items()) for number in interval_by_hand(*pair)]
    shorter, longer = (
        {seed: scaled[seed] - plain[seed] for seed in scaled.keys() & plain.keys()}
        for _, (scaled, plain) in sorted(values.items())
    )
    expected += interval_by_hand(longer, shorter)
    assert numbers(said) == pytest.approx(expected, abs=0.0051)
    counted = [(epochs, len(scaled.keys() & plain.keys())) for epochs, (scaled, plain) in sorted(values.items())]
    assert [(int(a), int(b)) for a, b in re.findall(r"in (\d+) epochs \((\d+) seeds\)", said)] == counted


def test_live_recomputed_without_our_statistics(filled):
    values = final_values("live-desk", lambda config: config.scaling.live)
    means = [statistics.fmean(values[live].values()) for live in (False, True)]
    stds = [statistics.stdev(values[live].values()) for live in (False, True)]
    printed = numbers(filled["live"])
    expected = [means[0], stds[0], means[1], stds[1], *interval_by_hand(values[True], values[False])]
    assert printed == pytest.approx(expected, abs=0.0051)


def test_controls_recomputed_without_our_statistics(filled):
    names = {"none": "SGS", "shuffled": "SGS, G shuffled", "neighbours-shuffled": "SGS, neighbours shuffled"}
    names |= {"inverse": "SGS, 1/G", "shared": "SGS, one G for all layers"}

    def arm(config):
        changed = (config.optimizer.lr, config.optimizer.weight_decay) != (0.1, 5e-4) or config.label_smoothing
        scaled = config.method.name == "sgs"
        return None if changed else names[config.scaling.control] if scaled else "plain"

    values = final_values("controls-desk", arm)
    recomputed = 0
    for line in filled["controls"].splitlines()[2:]:
        label, seeds, _, accuracy, gain = (cell.strip() for cell in line.strip("|").split("|"))
        if label in values:
            assert numbers(accuracy) == pytest.approx(spread_by_hand(list(values[label].values())), abs=0.0051)
            expected = [] if label == "plain" else interval_by_hand(values[label], values["plain"])
            assert numbers(gain) == pytest.approx(expected, abs=0.0051)
            assert int(seeds) == len(values[label])
            recomputed += 1
    assert recomputed == len(values.keys() - {None}) >= 3
    worse = interval_by_hand(values["SGS, G shuffled"], values["plain"])
    better = interval_by_hand(values["SGS"], values["SGS, G shuffled"])
    assert numbers(filled["control"]) == pytest.approx([*worse, *better], abs=0.0051)


def test_regimes_recomputed_without_our_statistics(filled):
    def place(config):
        steps = config.budget.epochs * (config.data.limit // config.data.batch_size)
        return config.data.limit, round(steps, -3), config.method.name

    values = final_values("regimes-desk", place)
    header, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in filled["regimes"].splitlines()
    )
    limits = [int(cell.removesuffix(" images").replace(",", "")) for cell in header[1:]]
    recomputed = 0
    for steps, *cells in rows:
        for limit, cell in zip(limits, cells, strict=True):
            if printed := numbers(cell):
                number = int(steps.replace(",", ""))
                expected = interval_by_hand(values[limit, number, "sgs"], values[limit, number, "baseline"])
                assert printed == pytest.approx(expected, abs=0.0051)
                recomputed += 1
    assert recomputed == len(values) // 2


def check_arms(table, values, plain_label="Plain"):
    """Recompute a table of arms: the cells before the number of seeds are the keys of the values."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    for *arm, seeds, accuracy, gain in rows:
        found, plain = values[tuple(arm)], values[(*arm[:-1], plain_label)]
        assert int(seeds) == len(found)
        assert numbers(accuracy) == pytest.approx(spread_by_hand(list(found.values())), abs=0.0051)
        assert numbers(gain) == pytest.approx(interval_by_hand(found, plain) if found is not plain else [], abs=0.0051)
    assert len(rows) == len(values)


def test_adaptive_optimizers_recomputed_without_our_statistics(filled):
    arms = {
        ("baseline", "gradient"): "Plain",
        ("sgs", "gradient"): "SGS on the gradient",
        ("sgs", "update"): "SGS on the update",
    }
    networks = {"vgg11-linear": "VGG-11", "convnext-atto": "ConvNeXt-Atto"}
    optimizers = {"adam": "Adam", "adamw": "AdamW"}

    def place(config):
        arm = arms[config.method.name, config.scaling.apply]
        return networks[config.model.name], optimizers[config.optimizer.name], arm

    check_arms(filled["adaptive"], final_values("adaptive-desk", place))


def test_sources_recomputed_without_our_statistics(filled):
    def place(config):
        scaling, method = config.scaling, config.method.name
        labels = {
            "baseline": "Plain",
            "sgs": "mutual information, live" if scaling.live else f"mutual information, k = {scaling.k:g}",
            "sgs-autocorrelation": "autocorrelation",
            "sgs-static": "best α and β",
        }
        # Points of the search train on a part of the images, and are not rows.
        return None if config.data.validation else ("CIFAR-100", labels[method])

    values = final_values("sources-desk", place)
    values.pop(None, None)
    check_arms(filled["sources"], values)


@pytest.mark.parametrize(("study", "network"), [("segmentation-desk", "PSPNet-18"), ("pose-desk", "MSRA ResNet-18")])
def test_other_tasks_recomputed_without_our_statistics(filled, study, network):
    folders = {"baseline": "Baseline", "sgs-in-pre-training": "SGS in pre-training"}
    folders |= {"sgs-in-fine-tuning": "SGS in fine-tuning", "sgs": "SGS"}
    values = {}
    for name, run in runs_of(study).items():
        label = folders.get(Path(name).parent.name.removeprefix(f"{network.lower().replace(' ', '-')}-"))
        if label is not None:
            values.setdefault((network, label), {})[run.result.seed] = 100 * run.result.test[run.result.metric]
    check_arms(filled[study.removesuffix("-desk")], values, plain_label="Baseline")


def test_methods_recomputed_without_our_statistics(filled):
    """Accuracies and gains at equal epochs, from the study of all methods, or Table 1's and the rivals' before it."""
    names = {"baseline": "plain", "sgs": "SGS", "repopt": "RepOpt", "repvgg": "RepVGG", "dyrep": "DyRep"}
    names["qarepvgg"] = "QARepVGG"
    archived, values = [path.stem for path in ARCHIVES], {}
    of_all = "quantization-desk" in archived
    studies, epochs = (("quantization-desk",), 60) if of_all else (("rivals-desk", "cifar-desk"), 30)
    for study in studies:

        def key(config, study=study):
            shown = config.data.name == "cifar100" and config.budget.epochs == epochs
            first = config.repopt.scales is None or config.method.name == "repopt"
            return (study, names.get(name := config.method.name, name.upper())) if shown and first else None

        values |= final_values(study, key)
    recomputed = 0
    for line in filled["methods"].splitlines()[2:]:
        method, seeds, accuracy, gain, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        if seeds:
            study = next(study for study in reversed(studies) if (study, method) in values)
            found = list(values[study, method].values())
            assert numbers(accuracy) == pytest.approx(spread_by_hand(found), abs=0.0051)
            expected = interval_by_hand(values[study, method], values[study, "plain"]) if method != "plain" else []
            assert numbers(gain) == pytest.approx(expected, abs=0.0051)
            recomputed += 1
    assert recomputed == len({method for _, method in filter(None, values)})


def test_costs_recomputed(filled):
    cost = json.loads((ROOT / "results" / "cost.json").read_text())["methods"]
    for line in filled["methods"].splitlines()[2:]:
        method, *_, ratio, _ = (cell.strip() for cell in line.strip("|").split("|"))
        pairs = zip(cost[method]["seconds"], cost["plain"]["seconds"], strict=True)
        assert numbers(ratio) == [pytest.approx(statistics.median(a / b for a, b in pairs), abs=0.0051)]


def test_the_picture_of_gains_over_the_fit_has_every_comparison(script, studies):
    rows = script["compared_rows"](studies)
    points = script["fit_points"](rows)
    assert len(points) == len(rows) > 17
    row = script["main_rows"](rows)[0]
    assert (row.plain_training.mean, row.comparison) in [(point.training, point.comparison) for point in points]


def test_archived_runs_are_whole_small_and_without_paths():
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


def test_the_whole_is_small():
    assert sum(path.stat().st_size for path in (ROOT / "results").rglob("*.json*")) < 700_000
