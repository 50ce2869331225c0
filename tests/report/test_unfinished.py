"""Runs that wait, run, have failed or are damaged are shown as such, and never spoil the table."""

import json
import re
import shutil
from dataclasses import replace

import pytest

from spatialgrad.report.load import load_results
from spatialgrad.report.page import render_html, render_markdown, write_report
from spatialgrad.studies.study import RunRecord
from spatialgrad.train.errors import ConfigError
from spatialgrad.train.locks import locked
from support.report import arm, make_part, record, search_study, write_run


@pytest.fixture
def study(tmp_path):
    """Two arms with three seeds; the second arm's first run is finished, and the others are up to the test."""
    arms = [
        arm("origin", "Origin", {"Dataset": "D"}, (0, 1, 2), reference=True),
        arm("sgs", "SGS", {"Dataset": "D"}, (0, 1, 2), method="sgs"),
    ]
    for seed in range(3):
        write_run(tmp_path / f"runs/origin/seed{seed}", 0.5 + 0.01 * seed, seed=seed)
    write_run(tmp_path / "runs/sgs/seed0", 0.52, layers=[("conv", 3)], method="sgs")
    record(arms, figures=("learning-curves", "overhead", "scalings", "cost")).write(tmp_path)
    return tmp_path


def state(study, name):
    return next(run for run in load_results(study).runs if run.name == name)


def texts(study, *figures):
    """The page and the Markdown, with some of the study's figures only: each takes a second to draw."""
    part = make_part(study, figures)
    return render_html([part]), render_markdown([part])


def test_waiting_failed_and_interrupted(study):
    write_run(study / "runs/sgs/seed1", 0.5, seed=1, state="failed")
    write_run(study / "runs/sgs/seed2", 0.5, seed=2, state="interrupted")
    assert state(study, "runs/sgs/seed1").state == "failed"
    assert state(study, "runs/sgs/seed2").state == "interrupted"
    for text in texts(study):
        assert "4 of 6 runs finished (1 interrupted, 1 failed)" in text
        assert "the loss is not a number any more after step 20" in text
        assert "1 of 3" in text
        assert "+2.00" in text
        assert "one pair: no test" in text
        assert "2 of 4 epochs" in text


def test_running(study):
    write_run(study / "runs/sgs/seed1", 0.5, seed=1, state="interrupted")
    with locked(study / "runs/sgs/seed1"):
        with (study / "runs/sgs/seed1/metrics.jsonl").open("a") as file:
            file.write('{"step": 30, "epoch": 2, "test_acc')  # as a reader may see it while it is written
        run = state(study, "runs/sgs/seed1")
        assert (run.state, run.epoch, run.message) == ("running", 2, "")
        assert list(run.curves["test_accuracy"][0]) == [1, 2]
        for text in texts(study):
            assert "4 of 6 runs finished (1 running, 1 waiting)" in text


def test_nothing_has_begun(tmp_path):
    names = ("learning-curves", "overhead", "scalings", "cost", "k-curve", "kernel-magnitudes", "distances", "examples")
    record([arm("a", "A", {}, (0, 1, 2))], figures=names).write(tmp_path)
    page, markdown = texts(tmp_path, *names)
    assert page.count("No data yet.") == 8
    assert markdown.count("no data yet") == 8
    for text in (page, markdown):
        assert "0 of 3 runs finished (3 waiting)" in text
        assert "not known yet" in text


def test_many_waiting_runs_are_counted_and_some_are_named(tmp_path):
    record([arm("a", "A", {}, range(40))], figures=()).write(tmp_path)
    page, _ = texts(tmp_path)
    assert "0 of 40 runs finished (40 waiting)" in page
    assert page.count('class="run-state waiting"') == 10


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("result.json", b'{"accuracy": 0.', "result.json is damaged"),
        ("result.json", b"[]", "result.json is damaged (Expected `object`, got `array`)"),
        ("result.json", b'{"metric": "accuracy"}', "result.json is damaged"),
        ("config.json", b"not json", "config.json is damaged"),
        ("config.json", b'{"budget": {"epochs": 4}, "seed": 9}', "config.json is that of another run (--seed: 9 there"),
        ("metrics.jsonl", b'{"step": 1, "epoch": 0, "test_accuracy": 0.1}\n{{{\n', "line 2 of metrics.jsonl"),
        ("environment.json", b"[1]", "environment.json is damaged"),
        ("scalings.jsonl", b"\x00\x01\n", "line 1 of scalings.jsonl"),
        ("timings.jsonl", b"[]\n", "line 1 of timings.jsonl"),
        ("examples/examples.json", b"{", "examples/examples.json is damaged"),
    ],
)
def test_a_damaged_run_is_one_line_that_names_the_file(study, name, content, says):
    path = study / "runs/sgs/seed0" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    run = state(study, "runs/sgs/seed0")
    assert (run.state, run.value, run.result) == ("damaged", None, None)
    assert says in run.message
    assert str(study) not in run.message
    if says.startswith("line 2"):  # one of them is enough for the page
        for text in texts(study):
            assert name in text
            assert "3 of 6 runs finished" in text
        assert "51.00 ± 1.00" in text  # the other arm


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"metric": "miou", "test": {"miou": 0.5}}, "result.json has no accuracy"),
        ({"epochs": 9}, "result.json is that of another run (epochs 9, but 4 in config.json)"),
        ({"method": "dbb"}, "result.json is that of another run (method 'dbb', but 'sgs' in config.json)"),
    ],
)
def test_a_result_of_something_else_is_no_value(study, change, says):
    path = study / "runs/sgs/seed0/result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    run = state(study, "runs/sgs/seed0")
    assert (run.state, run.message, run.value) == ("damaged", says, None)


def test_a_damaged_checkpoint_is_named_beside_the_kernel_magnitudes(real, tmp_path):
    shutil.copytree(real, tmp_path / "study", ignore=shutil.ignore_patterns("report"))
    for path in (tmp_path / "study/runs/tiny-baseline/seed0").glob("checkpoint*.pt"):
        path.write_bytes(b"PK damaged")
    page, _ = texts(tmp_path / "study", "kernel-magnitudes")
    assert "checkpoint.pt is damaged" in page
    assert "|W| SGS (ours)" in page
    assert "|W| Baseline" not in page


def test_a_run_outside_of_the_study_is_not_read(tmp_path):
    write_run(tmp_path / "outside/run", 0.9)
    each = replace(arm("a", "A", {}, ()), runs=(RunRecord(folder="../outside/run", seed=0),))
    record([each], figures=()).write(tmp_path / "study")
    with pytest.raises(ConfigError, match="outside the study's folder"):
        load_results(tmp_path / "study")


def test_arms_that_share_a_run_count_it_once(tmp_path):
    first = arm("a", "A", {}, (0,))
    second = replace(arm("b", "B", {}, ()), runs=first.runs)
    write_run(tmp_path / "runs/a/seed0", 0.5)
    record([first, second], figures=()).write(tmp_path)
    page, _ = texts(tmp_path)
    assert "1 of 1 runs finished" in page
    assert page.count("<span>50.00</span>") == 2


def test_hidden_arms_are_counted_but_not_in_the_table(tmp_path):
    arms = [arm("a", "Seen", {}, (0,)), arm("b", "Backbone only", {}, (0,), shown=False)]
    record(arms, figures=()).write(tmp_path)
    page, _ = texts(tmp_path)
    assert "0 of 2 runs finished" in page
    assert re.search(r"<th[^>]*><span>Backbone only", page) is None


def test_no_study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no study found in nothing.*study\.json"):
        write_report(["nothing"])
    record([arm("a", "A", {}, (0,))], figures=("histogram",)).write(tmp_path / "studies/cifar-desk")
    with pytest.raises(ConfigError, match=r"contains cifar-desk"):
        write_report(["nothing"])
    with pytest.raises(ConfigError, match=r"study\.json is damaged .*'histogram'"):
        write_report(["cifar"])
    assert not (tmp_path / "studies/cifar-desk/report").exists()


def test_a_backbone_has_a_metric_of_its_own(tmp_path):
    arms = [arm("net", "PSPNet", {}, (0,)), arm("back", "Backbone", {}, (0,), shown=False)]
    write_run(tmp_path / "runs/back/seed0", 0.5)  # an accuracy, where the study is about mIoU
    write_run(tmp_path / "runs/net/seed0", 0.5)
    record(arms, seeds=(0,), figures=(), metric="miou").write(tmp_path)
    assert {run.name: run.state for run in load_results(tmp_path).runs} == {
        "runs/net/seed0": "damaged",
        "runs/back/seed0": "finished",
    }
    page, _ = texts(tmp_path)
    assert "result.json has no miou" in page
    assert "1 of 2 runs finished (1 damaged)" in page


def test_the_point_that_was_chosen_is_the_best_one(tmp_path):
    """A point that failed at first, and is better, does not tune what is trained already."""
    search_study(tmp_path)
    (tmp_path / "searches/alpha-beta/best.json").write_text('{"values": {"scaling.alpha": 0.8, "scaling.beta": 1.7}}')
    assert "alpha-beta: best α = 0.8, β = 1.7 with" in texts(tmp_path, "search")[0]


@pytest.mark.parametrize("content", [b"{", b"{}"])
def test_a_choice_that_cannot_be_read_is_named(tmp_path, content):
    """The search itself is still shown, with the best of its points."""
    search_study(tmp_path)
    (tmp_path / "searches/alpha-beta/best.json").write_bytes(content)
    for text in texts(tmp_path, "search"):
        assert re.search(r"best\.json (cannot be read|is damaged|has no values)", text)
        assert "alpha-beta: best α = " in text


def test_magnitudes_of_a_run_under_way_say_so(real, tmp_path):
    shutil.copytree(real, tmp_path / "study", ignore=shutil.ignore_patterns("report"))
    for seed in (0, 1):
        (tmp_path / f"study/runs/tiny-sgs/seed{seed}/result.json").unlink()
    page, _ = texts(tmp_path / "study", "kernel-magnitudes")
    assert "Not fully trained: SGS (ours) (3 of 3 epochs)." in page


def test_finished_runs_without_examples_are_not_awaited(tmp_path):
    write_run(tmp_path / "runs/sgs/seed0", 0.52, layers=[("conv", 3)], method="sgs")
    record([arm("sgs", "SGS", {}, (0,), method="sgs")], figures=("examples", "scalings")).write(tmp_path)
    for text in texts(tmp_path, "examples", "scalings"):
        assert "all runs have finished without it, or were archived without their weights and predictions." in text
        assert "no data yet" not in text.lower()


def test_a_single_update_is_neither_the_start_nor_the_end(tmp_path):
    write_run(tmp_path / "runs/sgs/seed0", 0.52, layers=[("conv", 3)], method="sgs")
    log = tmp_path / "runs/sgs/seed0/scalings.jsonl"
    first, *_, last = log.read_text().splitlines()
    record([arm("sgs", "SGS", {}, (0,), method="sgs")], figures=("scalings",)).write(tmp_path)

    def described():
        return [re.search(r"SGS, conv: ([^.;]+\.[^;<\n]+)\.", page)[1] for page in texts(tmp_path, "scalings")]

    epochs = [json.loads(line)["epoch"] for line in (first, last)]
    assert all(re.fullmatch(rf"\S+ after epoch {epochs[0]}, \S+ after epoch {epochs[1]}", text) for text in described())
    log.write_text(last + "\n")
    assert all(re.fullmatch(rf"\S+ after epoch {epochs[1]}", text) for text in described())
