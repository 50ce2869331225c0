"""The report of a single training: settings, curves, scalings, result and cost."""

import json

import pytest

from spatialgrad.cli.main import main
from spatialgrad.report.page import write_report
from spatialgrad.train.config import TrainConfig, with_values
from support.report import table_rows, write_run


@pytest.fixture
def folder(tmp_path):
    values = {"method.name": "sgs", "scaling.k": 3.0, "model.name": "resnet18", "budget.epochs": 4}
    steps = {"median": 0.0123, "low": 0.012, "high": 0.015}
    write_run(
        tmp_path / "mine",
        0.5,
        seed=4,
        config=with_values(TrainConfig(), values),
        layers=[("conv", 3)],
        step_seconds=steps,
    )
    return tmp_path / "mine"


def test_its_result_settings_and_cost(folder):
    result, settings, (cost,) = (table_rows(folder, table) for table in range(3))
    assert {row["Metric"]: row["After training"] for row in result} == {
        "Accuracy": "50.00 %",
        "Loss": "1",
        "Top5": "70.00 %",
    }
    changed = {row["Setting"]: (row["Value"], row["Default"]) for row in settings}
    assert changed["--scaling.k"] == ("3.0", "5.0")
    assert changed["--model"][0] == "resnet18"
    assert cost["Time per step in ms (× reference)"] == "12.3 (× 1.00)/[12.0, 15.0]"


def test_its_figures_and_provenance(folder):
    environment = json.loads((folder / "environment.json").read_text())
    environment["command"] = ["spatialgrad", "train", "--out", "a b"]
    (folder / "environment.json").write_text(json.dumps(environment))
    assert write_report([folder]) == folder / "report/index.html"
    page = (folder / "report/index.html").read_text()
    for name in ("learning-curves", "scalings", "centre-share", "dependence", "overhead"):
        assert f'id="study-1-{name}"' in page
    assert "No data" not in page
    assert "spatialgrad train --out &#39;a b&#39;" in page
    assert "A quiet processor" in page


def test_a_baseline_has_no_figure_of_scalings_and_damage_is_told(tmp_path):
    write_run(tmp_path / "plain", 0.5, state="interrupted")
    page = write_report([tmp_path / "plain"]).read_text()
    assert 'id="study-1-scalings"' not in page
    assert "0 of 1 runs finished (1 interrupted)" in page
    (tmp_path / "plain/metrics.jsonl").write_text("{\n")
    assert "line 1 of metrics.jsonl is damaged" in write_report([tmp_path / "plain"]).read_text()


def test_on_the_command_line_beside_others(folder, capsys):
    write_run(folder.parent / "other", 0.6)
    assert main(["report", str(folder), str(folder.parent / "other")]) == 0
    page = folder.parent / "report/index.html"
    assert capsys.readouterr().out.strip() == str(page)
    assert all(f">{name}</h2>" in page.read_text() for name in ("mine", "other"))
