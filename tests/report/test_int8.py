"""What quantization changes: paired by seed within an arm, in the table, in the figure, and in an archive."""

import pytest

from spatialgrad.report.figures import build_figures
from spatialgrad.report.load import load_results
from spatialgrad.report.tables.results import build_tables
from spatialgrad.studies.archive import archive_study
from support.report import arm, record, write_run

FLOAT = {"plain": (0.50, 0.52, 0.51), "repvgg": (0.53, 0.52, 0.54)}
INT8 = {"plain": (0.499, 0.521, 0.509), "repvgg": (0.43, 0.40, 0.45)}
RANGES = {"plain": 6.0, "repvgg": 25.0}


@pytest.fixture
def folder(tmp_path):
    """Plain training and branches, three seeds each, quantized."""
    arms = [
        arm("plain", "Plain", {"Dataset": "A"}, range(3), reference=True),
        arm("repvgg", "RepVGG", {"Dataset": "A"}, range(3), method="repvgg"),
    ]
    record(arms, name="quantization", figures=("int8", "cost")).write(tmp_path)
    for method, values in FLOAT.items():
        for seed, value in enumerate(values):
            int8 = INT8[method][seed]
            write_run(
                tmp_path / "runs" / method / f"seed{seed}",
                value,
                seed=seed,
                method="baseline" if method == "plain" else method,
                test={"accuracy": value, "accuracy_int8": int8, "accuracy_int8_per_tensor": int8 - 0.1},
                weight_ranges={"features.0": 3.0, "features.4": RANGES[method], "classifier": 5.0},
                step_seconds={"median": 0.5, "low": 0.4, "high": 0.6},
            )
    return tmp_path


def test_the_table_has_the_change_with_its_interval_and_the_ranges(folder):
    table = next(table for table in build_tables(load_results(folder)) if table.caption == "INT8")
    plain, repvgg = (row[table.headers :] for row in table.rows)
    assert plain[0].lines == ("50.97 ± 1.10",)
    assert plain[1].sort == pytest.approx(-0.0333, abs=1e-3)
    assert repvgg[1].lines == ("−10.33", "[−14.13, −6.54]")
    assert repvgg[3].lines[0] == "−20.33"
    assert [cell.lines[0] for cell in (*plain[4:], *repvgg[4:])] == ["5.0", "6.0", "5.0", "25.0"]


def test_the_figures(folder):
    int8, cost = build_figures(load_results(folder), "page")
    assert "RepVGG −10.33 and −20.33" in int8.alt
    assert int8.svg
    # 40 steps of half a second and 5 seconds of updates, whatever the clock said.
    assert "Plain 51.00 % in 25 seconds" in cost.alt
    assert "without evaluation" in cost.caption


def test_archived_runs_keep_it(folder):
    live, archived = (load_results(path) for path in (folder, archive_study(folder, folder / "archive")))
    found = [[[cell.lines for cell in row] for row in build_tables(study)[1].rows] for study in (live, archived)]
    assert found[0] == found[1]
