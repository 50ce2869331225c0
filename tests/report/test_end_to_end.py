"""Two real studies, run and reported: every number of the report is that of the run folders."""

import json

import pytest

from spatialgrad.report import write_report
from support.report import accuracies, minus, table_rows, text_of
from support.studies import run_here, tiny_study

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("report-end-to-end")]


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """One with an arm that diverges, and one with a search that tunes an arm."""
    folder = tmp_path_factory.mktemp("studies")
    run_here(tiny_study(failing=True), folder / "tiny-pocket", num_seeds=2)
    run_here(tiny_study(tuned=True, name="searching"), folder / "searching-pocket", num_seeds=2)
    write_report([folder / "tiny-pocket", folder / "searching-pocket"])
    return folder


def differences(folder, key):
    ours, base = accuracies(folder, key), accuracies(folder, "fashion-mnist-origin")
    return [ours[seed] - base[seed] for seed in sorted(ours)]


def test_numbers_are_those_of_the_run_folders(studies):
    tiny, searching = studies / "tiny-pocket", studies / "searching-pocket"
    origin, sgs, wild = table_rows(tiny)
    assert origin["Ours (%)"] == text_of(accuracies(tiny, "fashion-mnist-origin").values())
    assert origin["Published (%)"] == "50.0 ± 0.5"
    assert sgs["Ours (%)"] == text_of(accuracies(tiny, "fashion-mnist-sgs-ours").values())
    mean = sum(differences(tiny, "fashion-mnist-sgs-ours")) / 2
    assert sgs["Difference [95 % CI]"].split("/")[0] == minus(f"{mean:+.2f}")
    assert (wild["Ours (%)"], wild["Seeds"]) == ("failed", "0 of 2")
    tuned = next(row for row in table_rows(searching) if row["Method"] == "tuned")
    assert tuned["Ours (%)"] == text_of(accuracies(searching, "fashion-mnist-tuned").values())


def test_failures_searches_and_states_are_told(studies):
    text = (studies / "report" / "report.md").read_text()
    assert "4 of 6 runs finished (2 failed)" in text
    message = json.loads((studies / "tiny-pocket/runs/fashion-mnist-wild/seed0/failure.json").read_text())["message"]
    assert message.split(":")[0].split("\n")[0][:40] in text
    values = {}
    for path in (studies / "searching-pocket/searches").rglob("result.json"):
        config = json.loads((path.parent / "config.json").read_text())
        values[config["scaling"]["alpha"]] = 100 * json.loads(path.read_text())["accuracy"]
    assert len(values) == 2
    best = max(values, key=lambda alpha: (values[alpha], -alpha))
    assert f"best α = {best}, lr = 0.05 with {values[best]:.2f} %" in text
