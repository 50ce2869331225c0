"""Kept runs are restored instead of trained again, if they compute the same and their weights are not needed."""

import json
import re
import shutil
from dataclasses import replace

import pytest

from spatialgrad.report.load import load_results
from spatialgrad.studies.study import Arm
from support.studies import console, results, run_here, tiny_config, tiny_study

ORIGIN, SCALED = "runs/fashion-mnist-origin/seed0", "runs/fashion-mnist-sgs-ours/seed0"


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A study that was run and kept."""
    folder = tmp_path_factory.mktemp("first") / "tiny-pocket"
    run_here(tiny_study(tuned=True), folder, keep=folder.parent / "results")
    return folder


@pytest.fixture
def keep(first, tmp_path):
    """A copy of what it kept."""
    return shutil.copytree(first.parent / "results", tmp_path / "results")


def contents(keep):
    return {path.relative_to(keep): path.read_bytes() for path in keep.rglob("seed*.json")}


def test_a_study_continues_after_its_folder_is_lost(first, keep, tmp_path):
    before, folder, heard = contents(keep), tmp_path / first.name, console()
    outcome, launcher = run_here(tiny_study(), folder, num_seeds=2, keep=keep, console=heard)
    assert [run.parts[-2:] for run in launcher.order] == [
        ("fashion-mnist-origin", "seed1"),
        ("fashion-mnist-sgs-ours", "seed1"),
    ]
    assert f"2 finished runs restored from {keep}" in heard.file.getvalue().replace("\n", " ")
    assert not outcome.failed
    assert len(outcome.finished) == 4
    after = contents(keep)
    assert {path: after[path] for path in before} == before
    assert len(after) == len(before) + 2
    assert not list(folder.rglob("*.restoring"))
    assert {run.state for run in load_results(folder).runs} == {"finished"}


def test_what_a_search_has_chosen_is_kept(first, keep):
    (chosen,) = first.rglob("best.json")
    copy = keep / first.name / chosen.relative_to(first)
    assert copy.read_bytes() == chosen.read_bytes()
    (search,) = load_results(first).searches
    assert json.loads(copy.read_text())["values"] == search.chosen


def test_searches_and_what_they_tune_are_run_again(first, keep, tmp_path):
    _, launcher = run_here(tiny_study(tuned=True), tmp_path / first.name, keep=keep)
    assert {run.parts[-3] for run in launcher.order} == {"alpha", "runs"}
    assert [run.parent.name for run in launcher.order if run.parts[-3] == "runs"] == ["fashion-mnist-tuned"]


def test_the_same_run_of_another_study_serves(keep, tmp_path):
    folder = tmp_path / "other-pocket"
    outcome, launcher = run_here(tiny_study(name="other"), folder, keep=keep)
    assert launcher.order == []
    assert len(outcome.finished) == 2
    there = contents(keep / "other-pocket")
    assert {str(path) for path in there} == {f"{ORIGIN}.json", f"{SCALED}.json"}
    for path, content in there.items():
        assert content == (keep / "tiny-pocket" / path).read_bytes()


def test_a_run_with_another_config_does_not_serve(keep, tmp_path):
    _, launcher = run_here(tiny_study(epochs=3), tmp_path / "longer", keep=keep)
    assert len(launcher.order) == 2


def test_a_run_that_has_begun_is_left_alone(first, keep, tmp_path):
    run = tmp_path / first.name / ORIGIN
    run.mkdir(parents=True)
    _, launcher = run_here(tiny_study(), tmp_path / first.name, keep=keep)
    assert launcher.order == [run]


def test_a_damaged_file_is_named_and_its_run_trained(first, keep, tmp_path):
    damaged, heard = keep / first.name / f"{SCALED}.json", console()
    damaged.write_text("{")
    _, launcher = run_here(tiny_study(), tmp_path / first.name, keep=keep, console=heard)
    assert launcher.order == [tmp_path / first.name / SCALED]
    assert re.search(rf"not restored: .*{re.escape(damaged.name)} is not a kept run", heard.file.getvalue())
    assert json.loads(damaged.read_text())["digest"]


def test_what_an_interruption_left_behind_is_replaced(first, keep, tmp_path):
    left = (tmp_path / first.name / ORIGIN).with_name("seed0.restoring")
    left.mkdir(parents=True)
    (left / "result.json").write_text("{")
    outcome, launcher = run_here(tiny_study(), tmp_path / first.name, keep=keep)
    assert launcher.order == []
    assert len(outcome.finished) == len(results(tmp_path / first.name)) == 2


def test_backbones_are_trained_because_weights_are_not_kept(tmp_path):
    group = {"Dataset": "Fashion-MNIST"}
    search = Arm(group=group, label="search", config=tiny_config("repopt-search"), shown=False)
    use = Arm(group=group, label="use", config=tiny_config("repopt"), backbone=search.key)
    study = replace(tiny_study(name="chain"), arms=lambda scale: (search, use))
    run_here(study, tmp_path / "chain", keep=tmp_path / "results")
    shutil.rmtree(tmp_path / "chain")
    outcome, launcher = run_here(study, tmp_path / "chain", keep=tmp_path / "results")
    assert len(launcher.order) == len(outcome.finished) == 2
