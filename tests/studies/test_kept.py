"""Results that are kept: what is in the files, and that a report of them says what the study's own says."""

import json
import re
import shutil

import pytest

from spatialgrad.cli.main import main
from spatialgrad.report.load import load_results
from spatialgrad.report.write import write_report
from spatialgrad.studies.kept import keep_study, read_kept, unpacked
from spatialgrad.train import ConfigError, DamagedFileError
from support.studies import console, run_here, tiny_study


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study whose runs were kept while it ran."""
    folder = tmp_path_factory.mktemp("studies") / "tiny-pocket"
    run_here(tiny_study(tuned=True), folder, num_seeds=2, keep=folder.parent / "results")
    return folder


@pytest.fixture
def kept(study, tmp_path):
    """A copy of what was kept."""
    return shutil.copytree(study.parent / "results" / study.name, tmp_path / "results" / study.name)


def test_every_finished_run_is_one_small_file_without_paths(study, kept):
    runs = {str(path.parent.relative_to(study)) for path in study.rglob("result.json")}
    files = {str(path.relative_to(kept)).removesuffix(".json") for path in kept.rglob("seed*.json")}
    assert files == runs
    for path in kept.rglob("seed*.json"):
        assert path.stat().st_size < 8000
        assert str(study) not in path.read_text()
        assert "command" not in path.read_text()


def test_values_survive_and_metrics_keep_six_digits(study, kept):
    run = "runs/fashion-mnist-sgs-ours/seed1"
    values = read_kept(kept / f"{run}.json")
    assert values["result.json"] == json.loads((study / run / "result.json").read_text())
    metrics = [json.loads(line) for line in (study / run / "metrics.jsonl").read_text().splitlines()]
    assert len(values["metrics.jsonl"]) == len(metrics) == 2
    for ours, theirs in zip(values["metrics.jsonl"], metrics, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    (last,) = values["scalings.jsonl"]
    written = json.loads((study / run / "scalings.jsonl").read_text().splitlines()[-1])
    for name, rows in written["scalings"].items():
        for ours, theirs in zip(last["scalings"][name], rows, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5)


def test_the_report_of_kept_runs_has_the_same_tables(study, kept, tmp_path):
    write_report([study], tmp_path / "own")
    write_report([kept], tmp_path / "kept")

    def tables(folder):
        return [line for line in (folder / "report.md").read_text().splitlines() if line.startswith("|")]

    assert tables(tmp_path / "own") == tables(tmp_path / "kept")
    assert any("SGS" in line for line in tables(tmp_path / "kept"))
    assert not list(kept.rglob("index.html"))


def test_keeping_again_changes_nothing_and_adds_what_is_new(study, kept, tmp_path):
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in kept.rglob("seed*.json")}
    (kept / "runs/fashion-mnist-origin/seed0.json").unlink()
    assert keep_study(study, kept.parent) == kept
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in kept.rglob("seed*.json")}
    assert after.keys() == before.keys()
    changed = [path.name for path in after if after[path] != before[path]]
    assert changed == ["seed0.json"]


DAMAGE = {"config.json": "[]", "environment.json": "{", "metrics.jsonl": "{{{\n", "result.json": '{"accuracy": 0.'}
ORIGIN = "runs/fashion-mnist-origin/seed0"


def names_of(folder, suffix):
    """The runs below a folder that have a file of this name, or whose name with this suffix is a file."""
    return {str(path.relative_to(folder)).removesuffix(suffix) for path in folder.rglob(f"seed*{suffix}")}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_run_is_named_and_the_others_are_kept(study, tmp_path, name):
    copy = shutil.copytree(study, tmp_path / study.name)
    (copy / ORIGIN / name).write_text(DAMAGE[name])
    with pytest.raises(DamagedFileError, match=rf"(?s)not kept.*{copy / ORIGIN}.*{re.escape(name)}"):
        keep_study(copy, tmp_path / "results")
    assert names_of(copy, "/result.json") - names_of(tmp_path / "results" / study.name, ".json") == {ORIGIN}


def test_another_run_in_the_place_of_the_planned_one_is_not_kept(study, tmp_path):
    copy = shutil.copytree(study, tmp_path / study.name)
    shutil.rmtree(copy / ORIGIN)
    shutil.copytree(copy / "runs/fashion-mnist-sgs-ours/seed0", copy / ORIGIN)
    with pytest.raises(DamagedFileError, match=rf"{copy / ORIGIN}: config.json is that of another run .*'sgs' there"):
        keep_study(copy, tmp_path / "results")
    assert names_of(copy, "/result.json") - names_of(tmp_path / "results" / study.name, ".json") == {ORIGIN}


@pytest.mark.parametrize("name", ["environment.json", "metrics.jsonl"])
def test_a_run_that_cannot_be_kept_does_not_stop_the_study(study, tmp_path, name):
    copy, heard = shutil.copytree(study, tmp_path / study.name), console()
    (copy / ORIGIN / name).write_text(DAMAGE[name])
    outcome, _ = run_here(tiny_study(tuned=True), copy, num_seeds=2, keep=tmp_path / "results", console=heard)
    assert len(outcome.finished) == len(names_of(copy, "/result.json"))
    assert re.search(rf"{copy / ORIGIN} has finished, but is not kept: .*{re.escape(name)}", heard.file.getvalue())
    assert names_of(copy, "/result.json") - names_of(tmp_path / "results" / study.name, ".json") == {ORIGIN}


def test_another_study_is_not_mixed_in(study, tmp_path):
    target = tmp_path / study.name
    run_here(tiny_study(name="other"), tmp_path / "elsewhere" / study.name, keep=tmp_path)
    with pytest.raises(ConfigError, match=re.escape(f"{target} keeps the study other")):
        keep_study(study, tmp_path)


def test_a_changed_config_is_noticed_and_the_rest_is_shown(kept):
    path = kept / "runs/fashion-mnist-origin/seed0.json"
    path.write_text(path.read_text().replace('"weight_decay":0.0005', '"weight_decay":0.0004'))
    with pytest.raises(ConfigError, match="was changed"):
        read_kept(path)
    with unpacked(kept) as folder:
        states = {run.name: run.state for run in load_results(folder).runs}
    assert states.pop("runs/fashion-mnist-origin/seed0") == "damaged"
    assert set(states.values()) == {"finished"}


@pytest.mark.parametrize("content", ["", "[]", '{"format": 2}', "[" * 100_000, '{"format": 1, "digest": "x"}'])
def test_a_file_that_is_no_kept_run_is_named(kept, content):
    path = kept / "runs/fashion-mnist-origin/seed0.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        read_kept(path)
    with unpacked(kept) as folder:
        assert load_results(folder).states["damaged"] == 1


def test_a_record_that_points_outside_writes_nothing_there(kept, tmp_path):
    record = json.loads((kept / "study.json").read_text())
    record["arms"][0]["runs"][0]["folder"] = "../escaped"
    (kept / "study.json").write_text(json.dumps(record))
    shutil.copy(kept / "runs/fashion-mnist-origin/seed0.json", kept.parent / "escaped.json")
    with unpacked(kept) as folder:
        assert not (folder.parent / "escaped").exists()
        assert load_results(folder).states["damaged"] == 1


def test_from_the_command_line(study, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["study", "keep", str(study)]) == 0
    assert capsys.readouterr().out.strip() == f"results/{study.name}"
    assert main(["report", f"results/{study.name}"]) == 0
    assert (tmp_path / "report/index.html").exists()
