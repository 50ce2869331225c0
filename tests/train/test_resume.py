"""Killed at any moment, a run ends as if nothing had happened: bit for bit."""

import random
import signal
import time

import pytest
import torch

from spatialgrad.train import InterruptedTraining, Method, Run, resume
from spatialgrad.train.checkpoint import has_checkpoint, load_checkpoint, read_checkpoint
from spatialgrad.train.jsonfiles import read_lines
from spatialgrad.train.signals import Stop
from support.training import (
    SILENT,
    Process,
    assert_resumes,
    assert_same_run,
    at_step,
    logs,
    quietly,
    request_stop,
    tiny,
    train_quietly,
    wait_for,
)

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


@pytest.mark.parametrize("method", ["sgs", "dyrep"])
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
    assert_resumes(
        lambda out: tiny(out, method, epochs=2), tmp_path, *((0, 1, 4, 5, 7, 10) if method == "sgs" else (7,))
    )


def test_other_checkpoint_intervals_change_nothing(finished, tmp_path):
    quietly(tiny(tmp_path / "often", "sgs", budget={"checkpoint_steps": 1}))
    assert_same_run(tmp_path / "often", finished)


class Busy(Method):
    """Between the steps 6 and 9, as in a live update."""

    steps = 0

    @property
    def busy(self):
        return 6 <= self.steps < 9

    def before_step(self, step):
        self.steps = step + 1


@pytest.mark.parametrize("where", ["step", "evaluation"])
def test_nothing_is_saved_while_a_method_is_busy(where, tmp_path, request):
    """A checkpoint, or the answer to a signal, waits until the method is ready."""
    config = tiny(tmp_path, f"{__name__}:Busy", budget={"checkpoint_steps": 7})
    if where == "evaluation":  # of the first epoch, after 5 steps
        request.getfixturevalue("monkeypatch").setattr(Busy, "busy", property(lambda self: 5 <= self.steps < 9))
    with at_step(5 if where == "evaluation" else 6, request_stop), pytest.raises(InterruptedTraining):
        quietly(config)
    assert read_checkpoint(tmp_path / "checkpoint.pt")["step"] == 9
    assert not (tmp_path / "checkpoint.previous.pt").exists()
    quietly(config)
    assert read_checkpoint(tmp_path / "checkpoint.previous.pt")["step"] == 14


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR1, 138), (signal.SIGUSR2, 140)],
)
def test_signals_finish_the_step_and_save(number, code, tmp_path):
    run = tmp_path / "my run"
    process = Process("train", *flags(tiny(run, "sgs", epochs=40)))
    wait_for(lambda: len(read_lines(run / "metrics.jsonl")) > 1)
    process.signal(number)
    process.signal(number if number != signal.SIGINT else signal.SIGTERM)  # the handler only sets a flag
    found, said, error = process.wait()
    assert found == code
    assert said.count(f"{signal.Signals(number).name} received: saving a checkpoint and stopping.") == 1
    assert f"spatialgrad resume '{run}'" in error
    assert "Traceback" not in error
    state = read_checkpoint(run / "checkpoint.pt")
    lines = read_lines(run / "metrics.jsonl")
    assert state["epoch"] == len(lines)
    assert state["step"] >= lines[-1]["step"]


def test_a_second_interrupt_ends_at_once():
    stop = Stop()
    with stop.listening():
        signal.raise_signal(signal.SIGINT)
        assert stop.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = Stop()
        with stop.listening():
            signal.raise_signal(signal.SIGHUP)
        assert not stop.signal
    finally:
        signal.signal(signal.SIGHUP, before)


def test_metrics_of_lost_steps_are_dropped(interrupted, finished):
    for name in ("metrics.jsonl", "scalings.jsonl"):
        with open(interrupted / name, "ab") as file:
            file.write(b'{"step": 10, "epoch": 1, "train_loss": 0.0}\n{"step": 11, "epo')  # killed in the middle of it
    resume(interrupted, console=SILENT)
    assert logs(interrupted) == logs(finished)


def test_a_finished_run_is_left_alone(finished):
    before = {path.name: path.stat().st_mtime_ns for path in finished.iterdir()}
    result, said = quietly(tiny(finished, "sgs"))
    assert result == Run.open(finished).result
    assert "has already finished" in said
    assert before == {path.name: path.stat().st_mtime_ns for path in finished.iterdir()}


def test_a_run_that_was_killed_before_its_result_gets_it(branched):
    first = Run.open(branched).result
    (branched / "result.json").unlink()
    second = resume(branched, console=SILENT)
    assert (second.test, second.steps, second.best) == (first.test, first.steps, first.best)


def test_time_of_all_sessions_is_counted(interrupted):
    before = read_checkpoint(interrupted / "checkpoint.pt")["seconds"]
    result = resume(interrupted, console=SILENT)
    assert result.training_seconds > before["training"] > 0
    assert result.update_seconds > before["update"] > 0
    parts = (result.training_seconds, result.evaluation_seconds, result.update_seconds, result.checkpoint_seconds)
    assert result.seconds == pytest.approx(sum(parts))


def test_dropout_does_not_depend_on_what_was_drawn_before(finished, tmp_path):
    with at_step(1, lambda trainer: torch.rand(17)):
        quietly(tiny(tmp_path / "run", "sgs"))
    assert_same_run(tmp_path / "run", finished)


def flags(config):
    """The command line of a tiny config."""
    return [
        *("--model", config.model.name, "--model.width", config.model.width, "--dataset", config.data.name),
        *("--data.limit", config.data.limit, "--data.test-limit", config.data.test_limit, "--data.cutout", 8),
        *("--batch-size", config.data.batch_size, "--method", config.method.name, "--optimizer.lr", 0.05),
        *("--scaling.every", 1, "--dyrep.interval", 1, "--dyrep.batches", 2, "--epochs", config.budget.epochs),
        *("--machine.accelerator", "cpu", "--machine.threads", 1, "--out", config.out),
    ]
