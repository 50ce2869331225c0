"""Killed at any moment, a run ends as if nothing had happened: bit for bit."""

import random
import signal
import time

import pytest
import torch

from spatialgrad.train import resume
from spatialgrad.train.checkpoint import has_checkpoint, load_checkpoint, read_checkpoint
from spatialgrad.train.jsonfiles import read_lines
from spatialgrad.train.signals import Stop
from support.training import (
    SILENT,
    Process,
    assert_resumes,
    assert_same_run,
    logs,
    quietly,
    stop_at,
    tiny,
    train_quietly,
    wait_for,
)

METHODS = ["baseline", "sgs", "dbb", "dyrep", "lemma"]
KILLED = {"budget": {"checkpoint_steps": 1}}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A folder with the undisturbed run of each method, and how long it took."""
    runs = {}

    def get(method):
        if method not in runs:
            folder = tmp_path_factory.mktemp(method)
            Process(0, function=int).wait()  # the first one waits for the imports
            process = Process(tiny(folder, method, **KILLED), function=train_quietly)
            assert process.wait()[0] == 0
            runs[method] = folder, time.monotonic() - process.started
        return runs[method]

    return get


@pytest.mark.parametrize("method", METHODS)
def test_killed_three_times(method, uninterrupted, tmp_path):
    kill_and_resume(method, uninterrupted(method), tmp_path, kills=3)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["baseline", "sgs", "dbb", "dyrep"])
def test_killed_twenty_times(method, uninterrupted, tmp_path):
    kill_and_resume(method, uninterrupted(method), tmp_path, kills=20)


def kill_and_resume(method, reference, tmp_path, kills):
    """SIGKILL at random moments from the start of the process on, until so many have hit a run in progress."""
    expected, duration = reference
    moments = random.Random(f"{method} {kills}")
    hits, steps, run = 0, [], 0
    while hits < kills:
        folder = tmp_path / str(run)
        process = Process(tiny(folder, method, **KILLED), function=train_quietly)
        if hits % 2:  # every other one not before it trains
            wait_for(lambda path=folder: has_checkpoint(path))
        time.sleep(moments.uniform(0, 0.5 * duration))
        if process.running:
            process.kill()
            hits += 1
            if state := load_checkpoint(folder):  # under either name: a kill may fall between the two renames
                steps.append(state["step"])
        else:
            # It was faster: compare it, and kill another one.
            assert process.wait()[0] == 0
            assert_same_run(folder, expected)
            run += 1
    assert Process(tiny(tmp_path / str(run), method, **KILLED), function=train_quietly).wait()[0] == 0
    assert_same_run(tmp_path / str(run), expected)
    assert len(steps) >= kills // 2  # killed in the middle of training, not before it each time


@pytest.mark.bits
@pytest.mark.parametrize("method", ["baseline", "sgs", "dbb", "dyrep", "lemma", "sgs-static", "sgs-autocorrelation"])
def test_every_step_is_a_place_to_stop(method, tmp_path):
    assert_resumes(lambda out: tiny(out, method, epochs=2), tmp_path, 0, 1, 4, 5, 7, 10)


def test_other_checkpoint_intervals_change_nothing(tmp_path):
    quietly(tiny(tmp_path / "often", "sgs", budget={"checkpoint_steps": 1}))
    quietly(tiny(tmp_path / "never", "sgs"))
    assert_same_run(tmp_path / "often", tmp_path / "never")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_finish_the_step_and_save(number, code, tmp_path):
    config = tiny(tmp_path / "run", "sgs", epochs=40)
    process = Process("train", *flags(config))
    wait_for(lambda: len(read_lines(tmp_path / "run" / "metrics.jsonl")) > 1)
    process.signal(number)
    found, said, error = process.wait()
    assert found == code
    assert ("completing the step and saving" in said) == (number != signal.SIGHUP)  # then no one reads it
    assert f"spatialgrad resume {tmp_path / 'run'}" in error
    state = read_checkpoint(tmp_path / "run" / "checkpoint.pt")
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert state["epoch"] == len(lines)
    assert state["step"] >= lines[-1]["step"]


def test_a_second_interrupt_ends_at_once():
    said = []
    stop = Stop(said.append)
    with stop.listening():
        signal.raise_signal(signal.SIGINT)
        assert stop.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert len(said) == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = Stop(print)
        with stop.listening():
            signal.raise_signal(signal.SIGHUP)
        assert not stop.signal
    finally:
        signal.signal(signal.SIGHUP, before)


def test_metrics_of_lost_steps_are_dropped(tmp_path):
    quietly(tiny(tmp_path / "whole", "sgs"))
    stop_at(7, tiny(tmp_path / "run", "sgs"))
    for name in ("metrics.jsonl", "scalings.jsonl"):
        with open(tmp_path / "run" / name, "ab") as file:
            file.write(b'{"step": 10, "epoch": 1, "train_loss": 0.0}\n{"step": 11, "epo')  # killed in the middle of it
    resume(tmp_path / "run", console=SILENT)
    assert logs(tmp_path / "run") == logs(tmp_path / "whole")


def test_a_finished_run_is_left_alone(tmp_path):
    first, _ = quietly(tiny(tmp_path, epochs=1))
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.name != "run.lock"}
    second, said = quietly(tiny(tmp_path, epochs=1))
    assert second == first
    assert "has already finished" in said
    assert before == {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.name != "run.lock"}


def test_a_run_that_was_killed_before_its_result_gets_it(tmp_path):
    first, _ = quietly(tiny(tmp_path, "dbb", epochs=1))
    (tmp_path / "result.json").unlink()
    second, _ = quietly(tiny(tmp_path, "dbb", epochs=1))
    assert (second.test, second.steps, second.best) == (first.test, first.steps, first.best)


def test_time_of_all_sessions_is_counted(tmp_path):
    stop_at(7, tiny(tmp_path, "sgs"))
    before = read_checkpoint(tmp_path / "checkpoint.pt")["seconds"]
    result = resume(tmp_path, console=SILENT)
    assert result.training_seconds > before["training"] > 0
    assert result.scaling_seconds > before["scaling"] > 0
    parts = (result.training_seconds, result.evaluation_seconds, result.scaling_seconds, result.checkpoint_seconds)
    assert result.seconds == pytest.approx(sum(parts))


def test_dropout_does_not_depend_on_what_was_drawn_before(tmp_path):
    quietly(tiny(tmp_path / "a", epochs=1))
    torch.manual_seed(123)
    torch.rand(17)
    quietly(tiny(tmp_path / "b", epochs=1))
    assert_same_run(tmp_path / "a", tmp_path / "b")


def flags(config):
    """The command line of a tiny config."""
    return [
        *("--model", config.model.name, "--model.width", config.model.width, "--dataset", config.data.name),
        *("--data.limit", config.data.limit, "--data.test-limit", config.data.test_limit, "--data.cutout", 8),
        *("--batch-size", config.data.batch_size, "--method", config.method.name, "--optimizer.lr", 0.05),
        *("--scaling.every", 1, "--dyrep.interval", 1, "--dyrep.batches", 2, "--epochs", config.budget.epochs),
        *("--machine.accelerator", "cpu", "--machine.threads", 1, "--out", config.out),
    ]
