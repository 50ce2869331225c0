"""`spatialgrad tune`: what is refused, and searches in real processes that are killed, pruned and resumed."""

import json
import signal
from dataclasses import replace

import pytest

from spatialgrad.studies.console import StudyReporter
from spatialgrad.studies.launch import LocalExecutor
from spatialgrad.studies.record import read_best, read_study
from spatialgrad.studies.runner import run_jobs
from spatialgrad.studies.tune import RANDOM_TRIALS, TrialJobs, with_k
from spatialgrad.train import Run
from spatialgrad.train.jsonfiles import read_lines
from spatialgrad.train.signals import Stop
from support.studies import console, results, tiny_config, write_result
from support.training import Process, wait_for

TINY = (
    *("--model", "vgg11-linear", "--model.width", "0.0625", "--dataset", "fashion-mnist-mini", "--data.limit", "150"),
    *("--data.image-size", "32", "--data.validation", "0.2", "--batch-size", "32", "--epochs", "3"),
    *("--scaling.every", "1", "--accelerator", "cpu", "--threads", "1"),
)


def tune(*arguments):
    return Process("tune", *TINY, *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--k", "20", "1"), "--k must be two positive numbers, the smaller one first, got 20 1"),
        (("--k", "0", "5"), "--k must be two positive numbers"),
        (("--trials", "0"), "--trials must be at least 2, got 0"),
        (("--seeds", "1"), "--seeds must be at least 2, got 1"),
        (("--data.validation", "0"), "--data.validation must be above 0"),
        (("--epochs", "1"), "--epochs must be greater than --scaling.warmup 1, got 1"),
        (("--optimizer.name", "sdg"), "did you mean 'sgd'?"),
        (("--data.drop-last", "--batch-size", "500"), "--data.drop-last drops the only batch"),
    ],
)
def test_wrong_commands(arguments, words, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, said = command("tune", *TINY, *arguments)
    assert code == 2
    assert words in said
    assert not list(tmp_path.iterdir())


def test_methods_without_k_are_refused(command):
    code, said = command("tune", *TINY, "--method", "dbb")
    assert code == 2
    assert "--method" in said


@pytest.mark.slow
def test_killed_interrupted_and_resumed_to_an_answer(tmp_path):
    folder = tmp_path / "study"
    options = ("--k", 1, 20, "--trials", 3, "--seeds", 2, "--out", folder, "--budget.checkpoint-steps", 1)
    first, second = (folder / f"searches/k/trial-00{number}/seed0" for number in (0, 1))
    process = tune(*options)
    wait_for(lambda: Run.open(first).epoch >= 1, 200)
    process.kill()
    process = tune(*options)
    wait_for(lambda: Run.open(second).epoch >= 1, 300)
    process.signal(signal.SIGINT)
    code, _, error = process.wait(200)
    assert code == 130
    assert "1 of 3 trials finished" in error
    kept = results(folder)
    code, said, error = tune(*options, "--jobs", 2).wait(500)
    assert code == 0, error
    assert kept.items() <= results(folder).items()
    assert "[3/3] k = " in said
    assert "Best k: " in said
    assert "Train with it: spatialgrad train --model vgg11-linear" in said
    assert "--scaling.k " in said.splitlines()[-1]
    assert "--data.validation" not in said.splitlines()[-1]
    assert all(Run.open(folder / f"searches/k/trial-00{number}/seed0").is_finished for number in range(3))
    record = read_study(folder)
    assert record.seeds == (1, 2)
    assert read_best(folder, "k") is not None
    text = (folder / "report/report.md").read_text()
    assert "the test images are not used" in text
    assert "spatialgrad tune --model" in text
    # No run has seen the test images.
    for run in folder.rglob("config.json"):
        assert Run.open(run.parent).config.data.validation == 0.2

    code, said, error = tune(*options).wait(300)
    assert code == 0, error
    assert "already finished" in said
    code, said, error = tune(*options, "--k", 2, 9).wait(300)
    assert code == 78
    assert "--k: '1 20' there, '2 9' now" in error


@pytest.mark.slow
def test_a_hopeless_training_really_stops(tmp_path):
    """Beside trials that were far better, a real training ends long before its last epoch."""
    epochs = 60
    config = tiny_config(
        "sgs", epochs=epochs, data={"validation": 0.2, "limit": 150}, scaling={"warmup": 0, "every": 99}
    )
    heard = console()
    for number in range(RANDOM_TRIALS):
        run = Run.open(tmp_path / f"searches/k/trial-{number:03d}/seed0")
        run.plan(replace(with_k(config, 2.0 + number), out=run.folder))
        lines = [json.dumps({"epoch": epoch, "test_accuracy": 0.99}) for epoch in range(epochs)]
        (run.folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
        write_result(run.folder, 0.99)
    jobs = TrialJobs(tmp_path, config, (1.0, 20.0), RANDOM_TRIALS + 1, StudyReporter(heard))
    run_jobs(jobs, LocalExecutor(1, 1), StudyReporter(heard), Stop())
    stopped = jobs.trials[-1]
    assert stopped.state == "pruned"
    run = stopped.folder
    assert Run.open(run).state == "failed"  # no command resumes it
    assert epochs // 3 <= len(read_lines(run / "metrics.jsonl")) < epochs
    assert f"stopped after epoch {epochs // 3 + 1} of {epochs}" in heard.file.getvalue()
    assert (run / "checkpoint.pt").exists()
