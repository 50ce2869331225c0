"""The numbers of a report, recomputed from the run folders with other tools."""

import html
import json
import re
import statistics
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from spatialgrad.report.page import escape_markdown, write_report
from spatialgrad.studies.paper.table1_cifar import QUOTED
from spatialgrad.studies.study import Point, Published, Search
from support.report import (
    DATASET,
    accuracies,
    arm,
    make_part,
    minus,
    record,
    table_rows,
    text_of,
    write_arm,
    write_run,
)


def test_means_differences_and_tests_of_table_1(cifar):
    shown = table_rows(cifar)
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
            alone, both = (float(text.split()[-1]) for text in row["p"].split("/"))
            assert alone == pytest.approx(max(0.001, p_values[key]), abs=5.1e-4)
            assert both == pytest.approx(np.clip(corrected[key], 0.001, 1), abs=5.1e-4)
            # Two pairs are too few, whatever p says.
            enough = len(accuracies(cifar, key)) == 3
            assert ("▲" in row["Difference [95 % CI]"]) == (bool(corrected[key] < 0.05) and enough)
    marked = [key for key, row in zip(keys, shown, strict=True) if "▲" in row["Difference [95 % CI]"]]
    assert "cifar-10-sgs-ours" in marked
    assert "cifar-10-dyrep" not in marked


def test_published_values_stand_beside_and_quoted_ones_have_a_star(cifar, reported):
    origin, dbb, _, sgs = table_rows(cifar)[:4]
    assert origin["Published (%)"] == "94.9 ± 0.07"
    assert dbb["Published (%)"] == "95.0 ± 0.1/94.97 ± 0.06*"
    assert sgs["Published difference"] == "+0.30"
    costs = table_rows(cifar, 1)
    assert costs[1]["GPU hours, published (× reference)"] == "7.0 (× 3.04)/9.4*"
    assert costs[1]["MACs, published (M)"] == "728.0/728.0*"
    assert f"measured by {QUOTED}" in (reported(cifar) / "index.html").read_text()


def test_costs_are_means_of_the_results(cifar):
    origin, dbb, _, sgs = table_rows(cifar, 1)[:4]
    for row, key in ((origin, "origin"), (dbb, "dbb"), (sgs, "sgs-ours")):
        results = [json.loads(p.read_text()) for p in (cifar / "runs" / f"cifar-10-{key}").glob("*/result.json")]
        seconds = statistics.fmean(each["seconds"] for each in results)
        assert row["Minutes per run"] == f"{seconds / 60:.2f}"
        share = statistics.fmean(each["update_seconds"] for each in results) / seconds
        assert row["Share of updates (%)"] == f"{100 * share:.1f}"
    assert origin["Parameters in training (M)"] == "15.00"


def test_the_time_of_a_step_is_compared_with_that_of_the_reference_in_the_same_study(tmp_path):
    keys = ("baseline", "dbb")
    arms = [arm(key, key, {"D": "x"}, (0, 1), reference=key == "baseline", method=key) for key in keys]
    medians = {"baseline": (0.010, 0.012), "dbb": (0.030, 0.034)}
    formats = {"baseline": "channels_last", "dbb": "contiguous"}
    for each in arms:
        for seed, median in enumerate(medians[each.label]):
            steps = {"median": median, "low": median - 0.001, "high": median + 0.002}
            fields = {"step_seconds": steps, "memory_format": formats[each.label], "seed": seed, "config": each.config}
            write_run(tmp_path / f"runs/{each.label}/seed{seed}", 0.5, **fields)
    record(arms, seeds=(0, 1), figures=()).write(tmp_path)
    plain, dbb = table_rows(tmp_path, 1)
    assert plain["Time per step in ms (× reference)"] == "11.0 (× 1.00)/[9.0, 14.0]"
    assert dbb["Time per step in ms (× reference)"] == f"32.0 (× {32 / 11:.2f})/[29.0, 36.0]"
    notes = " ".join(make_part(tmp_path).tables[1].notes)
    assert "Memory formats differ (channels_last: baseline; contiguous: dbb)" in notes


def test_results_without_the_time_of_a_step_show_no_ratio(searched):
    """Wall-clock times of a busy machine are no measure of a method's cost."""
    (first, *_) = table_rows(searched, 1)
    assert "Minutes per run" in first
    assert not [title for title in first if "reference" in title or "step" in title]
    assert "Memory formats differ" not in " ".join(make_part(searched).tables[1].notes)


def test_real_trainings_give_the_numbers_of_their_results(real, reported):
    folder = reported(real)
    baseline, sgs = table_rows(real)
    assert baseline["Ours (%)"] == text_of(accuracies(real, "tiny-baseline").values())
    assert sgs["Ours (%)"] == text_of(accuracies(real, "tiny-sgs").values())
    result = json.loads((real / "runs/tiny-sgs/seed0/result.json").read_text())
    _, costs = table_rows(real, 1)
    assert costs["MACs in training (M)"] == f"{result['training_macs'] / 1e6:.1f}"
    text = (folder / "report.md").read_text()
    assert result["dataset"] in text
    last = json.loads((real / "runs/tiny-sgs/seed0/scalings.jsonl").read_text().splitlines()[-1])
    name, G = next(iter(last["scalings"].items()))
    assert f"{name}: " in text
    assert f"{G[1][1]:.2f} after epoch {last['epoch']}" in text


def test_a_tuned_arm_costs_its_search(searched, reported):
    folder = reported(searched)
    rows = table_rows(searched, 1)
    # 14 points of 10 seconds are finished, and a run takes 100 seconds.
    assert rows[1]["Method"] == "Grid"
    assert rows[1]["Minutes per run"] == f"{(100 + 14 * 10) / 60:.2f}"
    assert rows[0]["Minutes per run"] == f"{100 / 60:.2f}"
    assert "best α = 1.7, β = 1.0 with 52.60 %" in (folder / "index.html").read_text()


def test_k_is_normalised_as_in_the_paper(searched, reported):
    folder = reported(searched)
    text = (folder / "report.md").read_text()
    expected = ", ".join(f"k = {k} {(0.02 - 0.001 * (k - 5) ** 2) / 0.02:.2f}" for k in range(1, 8))
    assert expected in text


def test_a_k_that_does_not_gain_is_not_normalised(tmp_path):
    group = {"Dataset": "D"}
    arms = [arm("b", "Baseline", group, (0,), reference=True)]
    arms += [arm(f"k{k}", f"k = {k}", group, (0,), method="sgs", k=float(k)) for k in (1, 5)]
    for each, value in zip(arms, (0.5, 0.52, 0.49), strict=True):
        write_arm(tmp_path, each, [value])
    record(arms, seeds=(0,), figures=("k-curve",)).write(tmp_path)
    write_report([tmp_path])
    assert "points above the baseline. D: k = 1 2.00, k = 5 -1.00" in (tmp_path / "report/index.html").read_text()


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_further_metrics(tmp_path, layout):
    published = [Published(mean=72.8, other={"top5": 80.0, "recall": 95.3})]
    arms = [arm("b", "Baseline", {"Model": "M"}, (0, 1), reference=True, published=published)]
    write_arm(tmp_path, arms[0], [0.5, 0.6])
    record(arms, seeds=(0, 1), figures=(), layout=layout).write(tmp_path)
    (row,) = table_rows(tmp_path, 2)
    assert row["top5, ours (%)"] == "75.00 ± 7.07"
    assert row["top5, published (%)"] == "80.0"
    assert "recall, ours (%)" not in row
    assert row["recall, published (%)"] == "95.3"


def test_everything_about_where_the_numbers_come_from_is_on_the_page(cifar, reported):
    folder = reported(cifar)
    for name in ("index.html", "report.md"):
        text = (folder / name).read_text()
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
    write_arm(tmp_path, arms[0], [0.5, 0.51, 0.52])
    write_arm(tmp_path, arms[1], [0.7, 0.7101, 0.7202])
    for scale, claims in (("desk", True), ("pocket", False)):
        record(arms, scale=scale, figures=()).write(tmp_path)
        write_report([tmp_path])
        page, markdown = ((tmp_path / "report" / name).read_text() for name in ("index.html", "report.md"))
        assert ("▲ +20" in page) == claims
        assert ("<strong><span>71" in page) == claims
        assert ("**71.01 ± 1.01**" in markdown) == claims
        for text in (page, markdown):
            assert ("no claim about accuracy" in text) == (not claims)


@pytest.mark.parametrize(("scale", "told"), [("paper", False), ("desk", True), ("pocket", True)])
def test_published_values_of_another_scale_are_called_not_comparable(tmp_path, scale, told):
    arms = [arm("a", "Origin", {"D": "x"}, (0,), reference=True, published=[Published(mean=73.7)])]
    write_run(tmp_path / "runs/a/seed0", 0.5)
    record(arms, seeds=(0,), scale=scale, figures=()).write(tmp_path)
    write_report([tmp_path])
    for name in ("index.html", "report.md"):
        assert ("not comparable with ours" in (tmp_path / "report" / name).read_text()) == told


def test_a_quoted_value_is_not_compared_with_the_papers_own(tmp_path):
    printed = {"a": Published(mean=71.13), "b": Published(mean=70.99, source="others"), "c": Published(mean=71.65)}
    arms = [arm(key, key, {"D": "x"}, (0,), reference=key == "a", published=[printed[key]]) for key in "abc"]
    for key in "abc":
        write_run(tmp_path / f"runs/{key}/seed0", 0.5)
    record(arms, seeds=(0,), figures=()).write(tmp_path)
    assert [row["Published difference"] for row in table_rows(tmp_path)] == ["–", "–", "+0.52"]


@pytest.mark.parametrize("study", ["cifar", "searched", "networks"])
def test_both_formats_have_every_cell_and_note_of_the_tables(study, reported, request):
    folder = request.getfixturevalue(study)
    page, markdown = ((reported(folder) / name).read_text() for name in ("index.html", "report.md"))
    shown = re.findall(r"<t[hd][ >].*?</t[hd]>", page, re.DOTALL)
    shown = [html.unescape(re.sub(r"<[^>]+>", "", each.replace("<br>", " "))).split() for each in shown]
    lines = markdown.replace("**", "").splitlines()
    for table in make_part(folder).tables:
        rows = [[(column.title,) for column in table.columns], *([cell.lines for cell in row] for row in table.rows)]
        for row in rows:
            expected = [" ".join(cell).split() for cell in row]
            assert any(shown[place : place + len(row)] == expected for place in range(len(shown)))
            assert f"| {' | '.join('<br>'.join(map(escape_markdown, cell)) for cell in row)} |" in lines
        for note in table.notes:
            assert html.unescape(page).count(note) == 1
            assert escape_markdown(note) in markdown


def corrected(folder):
    return [row["p"].rpartition(" ")[2] for row in table_rows(folder) if row["p"] != "–"]


def test_half_a_study_claims_no_more_than_the_whole(tmp_path):
    arms = [arm("a", "Origin", {"D": "x"}, (0, 1, 2), reference=True)]
    arms += [arm(key, key, {"D": "x"}, (0, 1, 2)) for key in "bcde"]
    write_arm(tmp_path, arms[0], [0.5, 0.51, 0.52])
    write_arm(tmp_path, arms[1], [0.52, 0.531, 0.542])
    record(arms, figures=()).write(tmp_path)
    p = stats.ttest_1samp([2.0, 2.1, 2.2], 0).pvalue
    assert corrected(tmp_path) == [f"{4 * p:.3f}"]


def test_arms_that_share_runs_are_one_comparison(tmp_path):
    arms = [arm(f"a{row}", "Origin", {"Row": row}, (0, 1, 2), reference=True) for row in "12"]
    arms += [arm(f"b{row}", "SGS", {"Row": row}, (0, 1, 2)) for row in "12"]
    arms = [replace(each, runs=arms[2 * (index // 2)].runs) for index, each in enumerate(arms)]
    write_arm(tmp_path, arms[0], [0.5, 0.51, 0.52])
    write_arm(tmp_path, arms[2], [0.52, 0.531, 0.542])
    record(arms, figures=()).write(tmp_path)
    p = stats.ttest_1samp([2.0, 2.1, 2.2], 0).pvalue
    assert corrected(tmp_path) == [f"{p:.3f}"] * 2


def test_a_curve_over_k_is_of_one_network_only(tmp_path):
    arms, points = [], []
    for model in ("M", "N"):
        arms.append(arm(f"{model}-b", "Baseline", {"Model": model}, (0,), reference=True))
        arms += [arm(f"{model}-k{k}", f"k = {k}", {"Model": model}, (0,), method="sgs", k=float(k)) for k in (1, 5)]
    points = [Point(values={"scaling.k": k}, runs=arms[i].runs) for i, k in ((1, 1.0), (2, 5.0))]
    for each, value in zip(arms[:4], (0.5, 0.51, 0.52, 0.9), strict=True):  # of N, only the baseline is finished
        write_arm(tmp_path, each, [value])
    search = Search(name="k-of-M", config=arms[1].config, grid={"scaling.k": (1.0, 5.0)}, points=tuple(points))
    record(arms, seeds=(0,), figures=("k-curve",), searches=(search,)).write(tmp_path)
    write_report([tmp_path])
    text = (tmp_path / "report/report.md").read_text()
    assert "M: k = 1 0.50, k = 5 1.00." in text
    assert "Bars of the held-out accuracy" in text
    assert "N: k" not in text


def test_a_note_is_told_once(tmp_path):
    arms = [arm(f"a{row}", "Origin", {"Row": row}, (0,), reference=True) for row in "12"]
    arms += [arm(f"b{row}", "SGS", {"Row": row}, (0,), note="beyond the paper") for row in "12"]
    arms += [arm("c1", "Other", {"Row": "1"}, (0,), note="alone"), arm("c2", "Other", {"Row": "2"}, (0,))]
    record(arms, seeds=(0,), figures=()).write(tmp_path)
    write_report([tmp_path])
    text = (tmp_path / "report/report.md").read_text()
    assert text.count("beyond the paper") == 1
    assert "SGS: beyond the paper" in text
    assert "1 · Other: alone" in text
