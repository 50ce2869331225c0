"""Whatever one run's files hold, the report of the others is written."""

import importlib.util
import json
import os
import shutil
from pathlib import Path

import pytest

from spatialgrad.report.load import load_results
from spatialgrad.report.reading import DEEPEST
from spatialgrad.report.write import write_report
from support.report import arm, made_up, record, write_run

HUGE = int("9" * 400)
DEEP = "[" * 100_000 + "]" * 100_000
FIGURES = (
    "cost",
    "learning-curves",
    "overhead",
    "k-curve",
    "scalings",
    "dependence",
    "centre-share",
    "kernel-magnitudes",
    "kernel-similarity",
    "distances",
    "examples",
)
OBJECTS = ("result.json", "environment.json", "config.json", "examples/examples.json")
LINES = ("metrics.jsonl", "timings.jsonl", "scalings.jsonl", "distances.jsonl")


@pytest.fixture
def study(tmp_path):
    arms = [
        arm("origin", "Origin", {"Dataset": "D"}, (0, 1, 2), reference=True),
        arm("sgs", "SGS", {"Dataset": "D"}, (0, 1, 2), method="sgs"),
    ]
    for seed in range(3):
        for each in arms:
            write_run(tmp_path / f"runs/{each.key}/seed{seed}", 0.5 + 0.01 * seed, seed=seed, layers=[("conv", 3)])
    record(arms, figures=FIGURES).write(tmp_path)
    return tmp_path


def spoil(values, number):
    """A JSON value with every number in it replaced."""
    if isinstance(values, dict):
        return {name: spoil(value, number) for name, value in values.items()}
    if isinstance(values, list):
        return [spoil(value, number) for value in values]
    return values if isinstance(values, str | bool | None) else number


def written(study):
    write_report([study])
    for name in ("index.html", "report.md"):
        text = (study / "report" / name).read_text()
        assert "51.00 ± 1.00" in text  # the other arm
    return text


def places(study, names):
    """A file of each name in a run of the same arm, three at most in a run."""
    for number, name in enumerate(names):
        path = study / f"runs/sgs/seed{number % 3}" / name
        path.parent.mkdir(exist_ok=True)
        yield path


@pytest.mark.parametrize("number", [HUGE, 1e308, -1e308, 5e-324, float("nan"), "x", []])
def test_absurd_numbers(study, number):
    for path in places(study, [*OBJECTS[:3], *LINES]):
        there = path.read_text() if path.exists() else json.dumps({"step": 1, "distance": 1.0})
        path.write_text("".join(json.dumps(spoil(json.loads(line), number)) + "\n" for line in there.splitlines()))
    written(study)


@pytest.mark.parametrize("number", [HUGE, 1e308, -1e308])
def test_absurd_scalings_of_a_run_that_is_shown(study, number):
    """All its other files are intact, so that figures draw what this one holds."""
    path = study / "runs/sgs/seed0/scalings.jsonl"
    lines = [spoil(json.loads(line), number) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**line, "epoch": 1}) + "\n" for line in lines))
    assert "scalings.jsonl has no matrix for conv" in written(study)
    (run,) = [run for run in load_results(study).runs if run.name == "runs/sgs/seed0"]
    assert (run.state, bool(run.scalings)) == ("finished", False)


def test_values_that_are_too_deep_to_be_printed(study):
    deep = "[" * 2 * DEEPEST + "]" * 2 * DEEPEST
    (study / "runs/sgs/seed0/environment.json").write_text(f'{{"python": {deep}}}')
    assert f"environment.json is nested more than {DEEPEST} deep" in written(study)


@pytest.mark.parametrize(
    "content",
    ['{"a": ' + DEEP + "}", '{"accuracy": ' + "9" * 5000 + "}", "{" * 100_000, "\x00" * 1000, "\ud800", "null"],
    ids=["deep", "5000 digits", "open", "zeros", "surrogate", "null"],
)
def test_absurd_files(study, content):
    for path in places(study, [*OBJECTS, *LINES]):
        path.write_bytes(content.encode("utf-8", "surrogatepass") + b"\n")
    text = written(study)
    for name in ("result.json", "environment.json", "config.json", "metrics.jsonl", "scalings.jsonl"):
        assert name in text


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file(study, make):
    for path in places(study, [*OBJECTS, *LINES]):
        path.unlink(missing_ok=True)
        make(path)
    written(study)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_weights_and_pictures_that_are_no_files(study, make):
    """A pipe to which nobody writes would keep the report waiting."""
    folder = study / "runs/sgs/seed0"
    make(folder / "checkpoint.pt")
    (folder / "examples").mkdir()
    index = {"examples": [{"caption": "one", "images": [{"title": "image", "file": "one.png"}]}]}
    (folder / "examples/examples.json").write_text(json.dumps(index))
    make(folder / "examples/one.png")
    text = written(study)
    assert "checkpoint.pt is not a regular file" in text
    assert "one.png in examples/examples.json is not a PNG file" in text


@pytest.mark.parametrize("name", [".", "result.json", "examples/one.png"])
def test_links_to_themselves(study, name):
    path = study / "runs/sgs/seed0" / name
    if name == ".":
        shutil.rmtree(path)
    elif name == "result.json":
        path.unlink()
    else:
        path.parent.mkdir()
        index = {"examples": [{"caption": "one", "images": [{"title": "image", "file": "one.png"}]}]}
        (path.parent / "examples.json").write_text(json.dumps(index))
    path.symlink_to(path.name)
    said = written(study)
    (run,) = [run for run in load_results(study).runs if run.name == "runs/sgs/seed0"]
    if name == "examples/one.png":
        assert run.state == "finished"
        assert "one.png in examples/examples.json cannot be read" in said
    else:
        assert run.value is None
        assert ("the folder" if name == "." else name) + " cannot be read" in said


def test_scalings_are_read_where_a_figure_shows_them(study):
    """Damage in a file that no figure reads is none of the report's business; all else is told."""
    path = study / "runs/sgs/seed0/scalings.jsonl"
    line = json.dumps({"epoch": 9, "scalings": made_up([("conv", 3)], 9)})
    path.write_text(path.read_text() + "{{{\n" + line + "\n")
    assert "scalings.jsonl is damaged in line 4; skipped" in written(study)
    (run,) = [run for run in load_results(study).runs if run.name == "runs/sgs/seed0"]
    assert run.problems == ()
    assert run.scalings
    assert (run.scalings.first.epoch, run.scalings.last.epoch) == (1, 9)
    assert [update.epoch for update in run.scalings.read()] == [1, 2, 3, 9]
    assert run.problems == ("scalings.jsonl is damaged in line 4; skipped",)


@pytest.mark.slow
def test_a_large_study(tmp_path):
    """500 runs of 200 epochs with scalings; the bounds allow for a busy machine, `--check` has the real ones."""
    path = Path(__file__).parents[2] / "benchmarks/bench_report.py"
    spec = importlib.util.spec_from_file_location("bench_report", path)
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    bench.write_study(tmp_path)
    seconds, megabytes = bench.measure(tmp_path)
    assert seconds < 3 * bench.MOST_SECONDS
    assert megabytes < 1.3 * bench.MOST_MEGABYTES
