"""`spatialgrad compare`: what is refused, and comparisons in real processes that are killed, resumed and extended."""

import os
import shutil
import signal

import pytest

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
    text = (folder / "report/report.md").read_text()
    assert "Measured: 2 epochs per run, evaluated after the last one on the test images of the data set." in text
    assert "Scalings over depth and time" in text
    assert "Differences from the paper" not in text
    repeated = next(line for line in text.splitlines() if line.startswith("spatialgrad compare"))
    assert repeated.endswith("--methods baseline sgs --seeds 2")
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
