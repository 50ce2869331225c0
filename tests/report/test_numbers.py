"""The numbers of a report, recomputed from the run folders with other tools."""

import json
import statistics
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy import stats

from report_helpers import DATASET, arm, record, write_run
from spatialgrad.report.commands import write_report
from spatialgrad.studies.base import Published


class Tables(HTMLParser):
    """The cells of all tables of a page, as texts; lines of a cell are joined by a slash."""

    def __init__(self, text):
        super().__init__()
        self.tables, self._cell = [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self._cell = ""
        elif tag == "br" and self._cell is not None:
            self._cell += "/"

    def handle_endtag(self, tag):
        if tag in ("th", "td"):
            self.tables[-1][-1].append(" ".join(self._cell.split()))
            self._cell = None

    def handle_data(self, data):
        if self._cell is not None:
            self._cell += data


def html_rows(folder, table=0):
    head, *rows = Tables((folder / "index.html").read_text()).tables[table]
    return [dict(zip(head, row, strict=True)) for row in rows]


def markdown_rows(folder, table=0):
    tables = [block for block in (folder / "report.md").read_text().split("\n\n") if block.startswith("| ")]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in tables[table].splitlines()]
    clean = [[cell.replace("**", "").replace("\\", "").replace("<br>", "/") for cell in row] for row in rows]
    return [dict(zip([cell.replace("\\", "") for cell in head], row, strict=True)) for row in clean]


def accuracies(folder, key):
    """Accuracies in per cent by seed, straight from the result files."""
    found = {}
    for path in sorted((folder / "runs" / key).glob("seed*/result.json")):
        found[int(path.parent.name.removeprefix("seed"))] = 100 * json.loads(path.read_text())["accuracy"]
    return found


def text_of(values):
    mean = f"{np.mean(list(values)):.2f}"
    return mean if len(values) < 2 else f"{mean} ± {np.std(list(values), ddof=1):.2f}"


def minus(text):
    return text.replace("-", "−")


@pytest.mark.parametrize("rows", [html_rows, markdown_rows])
def test_means_differences_and_tests_of_table_1(cifar, tmp_path, rows):
    write_report([cifar], tmp_path)
    shown = rows(tmp_path)
    assert len(shown) == 8
    keys = [f"{data}-{label}" for data in ("cifar-10", "cifar-100") for label in ("origin", "dbb", "dyrep", "sgs-ours")]
    p_values = {}
    for key, row in zip(keys, shown, strict=True):
        ours = accuracies(cifar, key)
        base = accuracies(cifar, key.rsplit("-", 1 if not key.endswith("ours") else 2)[0] + "-origin")
        assert row["Ours (%)"] == text_of(ours.values())
        assert row["Seeds"] == ("3" if len(ours) == 3 else f"{len(ours)} of 3")
        if key.endswith("origin"):
            assert row["Difference [95 % CI]"] == "reference"
            continue
        pairs = np.array([(ours[seed], base[seed]) for seed in sorted(ours.keys() & base.keys())])
        differences = pairs[:, 0] - pairs[:, 1]
        low, high = stats.t.interval(0.95, len(pairs) - 1, differences.mean(), stats.sem(differences))
        p_values[key] = stats.ttest_1samp(differences, 0).pvalue
        text = row["Difference [95 % CI]"].removeprefix("▲ ")
        assert text == minus(f"{differences.mean():+.2f}/[{low:+.2f}, {high:+.2f}]")
    ordered = sorted(p_values, key=p_values.get)
    corrected = dict(
        zip(ordered, np.maximum.accumulate([p_values[k] * (6 - i) for i, k in enumerate(ordered)]), strict=True)
    )
    for key, row in zip(keys, shown, strict=True):
        if key in p_values:
            alone, both = (float(text.split()[-1].replace("&lt;", "")) for text in row["p"].split("/"))
            assert alone == pytest.approx(max(0.001, p_values[key]), abs=5.1e-4)
            assert both == pytest.approx(np.clip(corrected[key], 0.001, 1), abs=5.1e-4)
            # Two pairs are too few, whatever p says.
            enough = len(accuracies(cifar, key)) == 3
            assert ("▲" in row["Difference [95 % CI]"]) == (bool(corrected[key] < 0.05) and enough)
    marked = [key for key, row in zip(keys, shown, strict=True) if "▲" in row["Difference [95 % CI]"]]
    assert "cifar-10-sgs-ours" in marked
    assert "cifar-10-dyrep" not in marked


@pytest.mark.parametrize("rows", [html_rows, markdown_rows])
def test_published_values_stand_beside_and_quoted_ones_have_a_star(cifar, tmp_path, rows):
    write_report([cifar], tmp_path)
    origin, dbb, _, sgs = rows(tmp_path)[:4]
    assert origin["Published (%)"] == "94.9 ± 0.07"
    assert dbb["Published (%)"].replace("\\", "") == "95.0 ± 0.1/94.97 ± 0.06*"
    assert sgs["Published difference"] == "+0.30"
    costs = rows(tmp_path, 1)
    assert costs[1]["GPU hours, published (× reference)"].replace("\\", "") == "7.0 (× 3.04)/9.4*"
    assert costs[1]["MACs, published"].replace("\\", "") == "728.0/728.0*"
    assert "measured by the DyRep paper" in (tmp_path / "index.html").read_text()


def test_costs_are_means_of_the_results(cifar, tmp_path):
    write_report([cifar], tmp_path)
    origin, dbb, _, sgs = html_rows(tmp_path, 1)[:4]
    for row, key in ((origin, "origin"), (dbb, "dbb"), (sgs, "sgs-ours")):
        results = [json.loads(p.read_text()) for p in (cifar / "runs" / f"cifar-10-{key}").glob("*/result.json")]
        seconds = statistics.fmean(each["seconds"] for each in results)
        assert row["Minutes per run, ours"] == f"{seconds / 60:.2f}"
        share = statistics.fmean(each["scaling_seconds"] for each in results) / seconds
        assert row["Share of scaling (%)"] == f"{100 * share:.1f}"
    assert dbb["× reference"] == f"{3010 / 1010:.2f}"
    assert origin["Parameters in training (M)"] == "15.00"


def test_real_trainings_give_the_numbers_of_their_results(real, tmp_path):
    write_report([real], tmp_path)
    baseline, sgs = html_rows(tmp_path)
    assert baseline["Ours (%)"] == text_of(accuracies(real, "tiny-baseline").values())
    assert sgs["Ours (%)"] == text_of(accuracies(real, "tiny-sgs").values())
    result = json.loads((real / "runs/tiny-sgs/seed0/result.json").read_text())
    _, costs = html_rows(tmp_path, 1)
    assert costs["MACs in training (M)"] == f"{result['training_macs'] / 1e6:.1f}"
    text = (tmp_path / "report.md").read_text()
    assert result["dataset"] in text
    last = json.loads((real / "runs/tiny-sgs/seed0/scalings.jsonl").read_text().splitlines()[-1])
    name, G = next(iter(last["scalings"].items()))
    assert f"{name}: " in text
    assert f"{G[1][1]:.2f} at last" in text


def test_a_tuned_arm_costs_its_search(searched, tmp_path):
    write_report([searched], tmp_path)
    rows = html_rows(tmp_path, 1)
    # 14 points of 10 seconds are finished, and a run takes 100 seconds.
    assert rows[1]["Method"] == "Grid"
    assert rows[1]["Minutes per run, ours"] == f"{(100 + 14 * 10) / 60:.2f}"
    assert rows[0]["Minutes per run, ours"] == f"{100 / 60:.2f}"
    assert "best α = 1.7, β = 1.0 with 52.60 %" in (tmp_path / "index.html").read_text()


def test_k_is_normalised_as_in_the_paper(searched, tmp_path):
    write_report([searched], tmp_path)
    text = (tmp_path / "report.md").read_text()
    expected = ", ".join(f"k = {k} {(0.02 - 0.001 * (k - 5) ** 2) / 0.02:.2f}" for k in range(1, 8))
    assert expected in text


def test_a_k_that_does_not_gain_is_not_normalised(tmp_path):
    group = {"Dataset": "D"}
    arms = [arm("b", "Baseline", group, (0,), reference=True)]
    arms += [arm(f"k{k}", f"k = {k}", group, (0,), method="sgs", k=float(k)) for k in (1, 5)]
    for each, value in zip(arms, (0.5, 0.52, 0.49), strict=True):
        write_run(tmp_path / each.runs[0].folder, value)
    record(arms, seeds=(0,), figures=("k-curve",)).write(tmp_path)
    write_report([tmp_path])
    assert "points above the baseline. D: k = 1 2.00, k = 5 -1.00" in (tmp_path / "report/index.html").read_text()


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_further_metrics(tmp_path, layout):
    published = [Published(mean=72.8, other={"top5": 80.0, "recall": 95.3})]
    arms = [arm("b", "Baseline", {"Model": "M"}, (0, 1), reference=True, published=published)]
    for seed, value in ((0, 0.5), (1, 0.6)):
        write_run(tmp_path / f"runs/b/seed{seed}", value, seed=seed)
    record(arms, seeds=(0, 1), figures=(), layout=layout).write(tmp_path)
    write_report([tmp_path])
    (row,) = html_rows(tmp_path / "report", 2)
    assert row["top5, ours (%)"] == "75.00 ± 7.07"
    assert row["top5, published (%)"] == "80.0"
    assert row["recall, ours (%)"] == "–"
    assert row["recall, published (%)"] == "95.3"


def test_everything_about_where_the_numbers_come_from_is_on_the_page(cifar, tmp_path):
    write_report([cifar], tmp_path)
    for name in ("index.html", "report.md"):
        text = (tmp_path / name).read_text()
        for fact in (
            "desk",
            DATASET,
            "0, 1, 2",
            "22 of 24 runs finished",
            "0123456789ab",
            "A quiet processor",
            "torch 2.13.0",
            "2026-03-04",
            "spatialgrad study run cifar --scale desk --seeds 3",
            "A quarter of the width",
        ):
            assert fact in text, (name, fact)


def test_pocket_scale_makes_no_claim(tmp_path):
    arms = [arm("a", "Origin", {"D": "x"}, (0, 1, 2), reference=True), arm("b", "SGS", {"D": "x"}, (0, 1, 2))]
    for seed in range(3):
        write_run(tmp_path / f"runs/a/seed{seed}", 0.5 + 0.01 * seed, seed=seed)
        write_run(tmp_path / f"runs/b/seed{seed}", 0.7 + 0.0101 * seed, seed=seed)
    for scale, claims in (("desk", True), ("pocket", False)):
        record(arms, scale=scale, figures=()).write(tmp_path)
        write_report([tmp_path])
        page, markdown = ((tmp_path / "report" / name).read_text() for name in ("index.html", "report.md"))
        assert ("▲ +20" in page) == claims
        assert ("<strong><span>71" in page) == claims
        assert ("**71.01 ± 1.01**" in markdown) == claims
        for text in (page, markdown):
            assert ("no claim about accuracy" in text) == (not claims)
