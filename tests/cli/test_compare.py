"""`spatialgrad compare`: what is refused, and comparisons in real processes that are killed, resumed and extended."""

import os
import re
import shutil
import signal

import pytest

from spatialgrad.cli.compare import fit, fit_verdict, small_defaults, verdict
from spatialgrad.cli.options import recipe_config
from spatialgrad.report.statistics import Comparison
from spatialgrad.studies.archive import read_archive
from spatialgrad.studies.record import read_study
from spatialgrad.train import Run
from support.own_images import write_class_folders
from support.studies import results, sessions
from support.training import Process, wait_for

TINY = (
    *("--model", "vgg11", "--model.width", "0.0625", "--dataset", "fashion-mnist-mini", "--data.image-size", "32"),
    *("--data.limit", "150", "--data.test-limit", "100", "--batch-size", "32", "--epochs", "2", "--scaling.every", "1"),
    *("--optimizer.lr", "0.05", "--accelerator", "cpu", "--threads", "1"),
)


def compare(*arguments):
    return Process("compare", *TINY, *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--methods", "baseline", "dbbb"), "unknown --methods 'dbbb'; did you mean 'dbb'?"),
        (("--methods", "sgs"), "--methods must name at least 2 methods"),
        (("--seeds", "1"), "--seeds must be at least 2, got 1"),
        (("--jobs", "0"), "--jobs must be at least 1, got 0"),
        (("--ray-address", "auto"), "--ray-address can only be used with --launcher ray"),
        (("--model", "vgg12"), "unknown model 'vgg12'; did you mean"),
        (("--recipe", "dsk"), "did you mean 'desk'?"),
        (("--epochs", "0"), "--epochs must be at least 1, got 0"),
        (("--minutes", "5"), "--minutes 5: plans the number of epochs, and --epochs sets it"),
        (("photos",), "photos must come first"),
        # What only building a run can tell is told once, and not by each of the runs.
        (("--data.drop-last", "--batch-size", "500"), "--data.drop-last drops the only batch"),
        (("--processes", "7"), "--batch-size 32 must be a multiple of the number of processes, 7"),
        (("--optimizer.options", "nesterof=true"), "--optimizer.options: sgd takes no nesterof"),
    ],
)
def test_wrong_commands(arguments, words, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, said = command("compare", *TINY, *arguments)
    assert code == 2
    assert said.count(words) == 1
    assert not list(tmp_path.iterdir())


def test_folders_without_images_are_refused_before_anything_is_written(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    code, said = command("compare", *TINY, "--dataset", "folder:empty")
    assert code == 66
    assert "empty contains no images. They must be in <class>/, or in train/<class>/ and val/<class>/" in said
    code, said = command("compare", *TINY, "--dataset", "folder:nowhere")
    assert code == 66
    assert "the PATH of --dataset folder:nowhere" in said
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_the_folder_of_another_study_is_left_alone(command, tmp_path):
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "study.json").write_text("{")
    code, said = command("compare", *TINY, "--out", folder)
    assert code == 2
    assert "study.json" in said
    assert [path.name for path in folder.iterdir()] == ["study.json"]


@pytest.mark.parametrize(
    ("epoch", "seeds", "expected"),
    [
        (2.0, None, (100, 5)),  # short epochs: many of them, and more seeds
        (20.0, None, (29, 3)),
        (190.0, None, (3, 3)),
        (20.0, 2, (44, 2)),  # seeds that are given stay
        (200.0, None, None),
    ],
)
def test_planned_comparisons_fit_into_the_time(epoch, seeds, expected):
    planned = fit(epoch, 2, 30, seeds, slots=1)
    if expected is None:
        assert planned is None
        return
    assert (planned.epochs, planned.seeds) == expected
    assert planned.seconds <= 1800
    assert fit(epoch, 2, 30, seeds, slots=2).epochs >= planned.epochs


def comparison(low, high, n=3):
    return Comparison(n=n, difference=(low + high) / 2, low=low, high=high, p=0.01, holm=0.01)


def test_verdicts():
    assert verdict("sgs", "baseline", comparison(0.4, 2.0)) == (
        "sgs: +1.20 points from baseline, 95 % interval +0.40 to +2.00 (3 seeds): better."
    )
    assert verdict("sgs", "baseline", comparison(-2.0, -0.4)).endswith("worse.")
    assert verdict("sgs", "baseline", comparison(-1.0, 2.0)).endswith("no clear difference.")
    assert verdict("sgs", "baseline", comparison(0.4, 2.0, n=2)).endswith("no clear difference.")
    assert "(one pair: no test)" in verdict(
        "sgs", "baseline", Comparison(n=1, difference=1.0, note="one pair: no test")
    )


def test_defaults_are_small_unless_the_user_decides():
    def small(*arguments):
        config = small_defaults(recipe_config(arguments), arguments)
        return config.model.name, config.model.width, config.data.name, config.data.image_size

    assert small() == ("vgg11-linear", 0.25, "fashion-mnist-mini", 32)
    assert small("photos", "--minutes", "5") == ("vgg11-linear", 0.25, "folder:photos", 64)
    assert small("cifar10") == ("vgg11-linear", 0.25, "cifar10", None)
    assert small("photos", "--model", "resnet18")[:2] == ("vgg11", 1.0)  # the parser puts the flag in its place
    assert small("photos", "--recipe", "pocket") == ("vgg11", 0.125, "folder:photos", 32)


def test_minutes_are_planned_from_measured_steps(command, tmp_path, monkeypatch):
    """What will be done, and what it cannot tell, is said before anything is written."""
    monkeypatch.chdir(tmp_path)
    write_class_folders(tmp_path / "photos")
    launched = []
    monkeypatch.setattr(
        "spatialgrad.cli.launching.LaunchOptions.run", lambda self, plan, *a, **b: launched.append(plan)
    )
    monkeypatch.setattr("spatialgrad.cli.compare.show_report", lambda folder: None)
    monkeypatch.setattr("spatialgrad.cli.compare.show_verdict", lambda folder: None)
    small = ("--model.width", "0.0625", "--data.image-size", "32", "--accelerator", "cpu", "--threads", "1")
    code, said = command("compare", "photos", "--minutes", "600", *small, "--machine.workers", "0")
    assert code == 0, said
    assert "In 600 minutes: 100 epochs, 5 seeds, 10 runs, about " in said
    assert "cannot tell" in said
    (plan,) = launched
    assert len(plan.jobs) == 10
    assert {job.config.budget.epochs for job in plan.jobs} == {100}
    assert plan.record.command.endswith(f"--epochs 100 --methods baseline sgs --seeds 5 --out {plan.folder}")
    code, said = command("compare", "photos", "--minutes", "0.01", *small, "--machine.workers", "0")
    assert code == 2
    assert "--minutes 0.01 is too short: 3 epochs with 3 seeds take about" in said
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]
    # The same command resumes what was planned, however long a step takes now.
    plan.record.write(plan.folder)
    code, said = command("compare", "photos", "--minutes", "600", *small, "--machine.workers", "0")
    assert code == 0, said
    assert "measuring" not in said
    assert [job.config for job in launched[1].jobs] == [job.config for job in plan.jobs]


@pytest.mark.parametrize(("train", "words"), [(75.0, "clearly better"), (72.0, "hardly better"), (60, "hardly better")])
def test_the_verdict_on_the_fit(train, words):
    assert f"baseline is {words} on training images" in fit_verdict("baseline", train, 70.0)


@pytest.mark.slow
def test_from_class_folders_to_the_report(tmp_path, monkeypatch):
    """Images of one's own, the report and the table, the same command again, more seeds and methods, other settings."""
    monkeypatch.chdir(tmp_path)
    write_class_folders(tmp_path / "My Clothes")
    own = ("--dataset", "folder:My Clothes", "--data.limit", "30", "--data.test-limit", "None", "--batch-size", "10")
    code, said, error = compare(*own, "--methods", "baseline", "sgs", "--seeds", 2, "--jobs", 2).wait(400)
    assert code == 0, error
    (folder,) = tmp_path.glob("studies/compare-my-clothes-vgg11-w0.0625-??????")
    assert "4 runs finished" in said
    assert "baseline" in said
    assert "reference" in said
    assert f"Report: studies/{folder.name}/report/index.html" in said
    assert re.search(r"^sgs: [+−][\d.]+ points from baseline.*\.$", said, re.MULTILINE)
    assert re.search(r"baseline: accuracy [\d.]+ % on training images, [\d.]+ % on validation images\.\n", said)
    assert re.search(r"^baseline is (clearly|hardly) better on training images", said, re.MULTILINE)
    text = (folder / "report/report.md").read_text()
    assert "Measured: 2 epochs per run, evaluated after the last one on the test images of the data set." in text
    assert "Scalings over depth and time" in text
    assert "Differences from the paper" not in text
    repeated = next(line for line in text.splitlines() if line.startswith("spatialgrad compare"))
    assert repeated.endswith("--epochs 2 --methods baseline sgs --seeds 2")
    assert "--dataset 'folder:My Clothes'" in repeated
    page = (folder / "report/index.html").read_text()
    assert "own scale" not in page
    assert "Accuracy (%)" in page

    before = results(folder)
    code, said, error = compare(*own, "--seeds", 2).wait(400)
    assert code == 0, error
    assert "4 runs, 4 of them already finished." in said
    assert results(folder) == before

    code, said, error = compare(*own, "--epochs", 3, "--out", folder).wait(400)
    assert code == 78
    assert "--epochs: 2 there, 3 now" in error
    assert results(folder) == before

    code, said, error = compare(*own, "--methods", "repopt", "--seeds", 2, "--jobs", 2).wait(400)
    assert code == 0, error
    assert "8 runs, 4 of them already finished." in said
    record = read_study(folder)
    assert [arm.label for arm in record.arms] == ["baseline", "sgs", "repopt-search", "repopt"]
    assert record.command.endswith("--methods baseline sgs repopt --seeds 2")
    assert before.items() <= results(folder).items()

    code, said, error = Process("study", "status", folder.name).wait()
    assert code == 0, error
    assert "8 runs, 8 finished" in said
    code, said, error = Process("study", "archive", folder.name, "--into", "archives").wait()
    assert code == 0, error
    assert len(read_archive(tmp_path / "archives" / f"{folder.name}.jsonl").runs) == 8


@pytest.mark.slow
def test_killed_and_interrupted_it_resumes(tmp_path):
    """SIGKILL to the command, then Ctrl-C, then to the end."""
    folder = tmp_path / "study"
    options = ("--out", folder, "--seeds", 2, "--epochs", 10, "--budget.checkpoint-steps", 1)
    first = folder / "runs/baseline/seed0"
    process = compare(*options)
    wait_for(lambda: Run.open(first).epoch >= 2, 200)
    process.kill()
    wait_for(lambda: Run.open(first).state == "interrupted", 200)
    process = compare(*options)
    wait_for(lambda: Run.open(folder / "runs/sgs/seed0").epoch >= 1, 300)
    process.signal(signal.SIGINT)
    code, _, error = process.wait(200)
    assert code == 130
    assert "Run the same command again to resume." in error
    code, said, error = compare(*options, "--jobs", 2).wait(500)
    assert code == 0, error
    assert "4 runs, 1 of them already finished." in said
    assert sessions(first) == 2
    assert sessions(folder / "runs/sgs/seed0") == 2


@pytest.mark.slow
def test_a_method_that_fails_is_reported_with_the_others(tmp_path):
    folder = tmp_path / "study"
    # A network without batch normalization does not survive such a learning rate; the report says what is missing.
    code, said, error = compare("--out", folder, "--seeds", 2, "--optimizer.lr", "1e30", "--jobs", 2).wait(400)
    assert code == 5
    assert "4 of 4 runs failed" in error
    assert f"Report: {folder}" in said.replace("\n", "")
    assert "became non-finite" in (folder / "report/report.md").read_text()
    shutil.rmtree(folder)
    assert os.listdir(tmp_path) == []
