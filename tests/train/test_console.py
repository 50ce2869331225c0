"""Bars on a terminal, plain lines elsewhere."""

import io
import re
import time

import pytest
from rich.console import Console

from spatialgrad.train import console as progress
from spatialgrad.train import train
from spatialgrad.train.console import Reporter, describe, duration, make_reporter, show_metric
from spatialgrad.train.tasks.classification import Classification
from support.training import quietly, tiny


def output(console):
    return console.file.getvalue()


def test_a_terminal_gets_bars_with_everything_in_them(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "REFRESH", 0.02)  # on a fast machine, an epoch is over before the usual time
    monkeypatch.setattr(progress._Bars, "interval", 0.02)
    console = Console(file=io.StringIO(), force_terminal=True, width=160, color_system=None)
    train(tiny(tmp_path, "sgs", epochs=2, data={"limit": 640}), console=console)
    said = output(console)
    assert "\x1b[" in said  # the bars are drawn over themselves
    for part in ("epoch 1", "epoch 2", "━", "loss", "accuracy", "images/s", "left"):
        assert part in said
    assert "epoch 1/2" not in said  # the lines are for log files


def test_a_file_gets_one_line_per_epoch(tmp_path):
    console = Console(file=io.StringIO(), width=160)
    train(tiny(tmp_path, "sgs", epochs=2), console=console)
    said = output(console)
    assert "\x1b" not in said
    (first, second) = [line for line in said.splitlines() if line.startswith("epoch")]
    for part in ("epoch 1/2", "train loss", "train accuracy", "test accuracy", "images/s", "left"):
        assert part in first
    assert "left" not in second


@pytest.fixture
def timed(monkeypatch):
    """A reporter for log files, what it prints to, and the time that it sees."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    console = Console(file=io.StringIO(), width=160)
    return make_reporter(console, first=True), console, now


def test_a_long_epoch_says_how_far_it_is(timed):
    reporter, console, now = timed
    reporter.start(2, 100, seconds=lambda: now[0])
    for _ in range(100):
        now[0] += 2.0
        reporter.step(128)
        if reporter.wants_totals:
            reporter.totals({"loss": 1.0, "accuracy": 0.5})
    lines = output(console).splitlines()
    assert len(lines) == 3
    assert lines[0] == "epoch 1/2 step 31/100  loss 1.000 · accuracy 50.0 % · 64 images/s · 6 min left"


def test_time_of_tests_does_not_slow_the_images_down(timed):
    """Of ten seconds, two were for training."""
    reporter, console, now = timed
    reporter.start(2, 1, seconds=lambda: min(now[0], 2.0))
    now[0] = 10.0
    reporter.step(100)
    reporter.epoch({"train_loss": 1.0})
    assert "50 images/s" in output(console)


def test_the_rate_of_a_training_is_that_of_its_steps(tmp_path, monkeypatch):
    evaluate = Classification.evaluate

    def slow(self, model, batch):
        time.sleep(0.5)
        return evaluate(self, model, batch)

    monkeypatch.setattr(Classification, "evaluate", slow)
    result, said = quietly(tiny(tmp_path, epochs=1))
    rate = float(re.search(r"([\d,]+) images/s", said)[1].replace(",", ""))
    assert rate == pytest.approx(150 / result.training_seconds, rel=0.3)


@pytest.mark.parametrize("error", [BrokenPipeError, OSError(5, "Input/output error")])
@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_that_is_gone_does_not_end_a_training(error, terminal, tmp_path, monkeypatch):
    """`spatialgrad train | head -n 8`, or a connection that breaks."""

    class Gone(io.StringIO):
        def write(self, text):
            if "vgg11" not in text:
                raise error
            return super().write(text)

    monkeypatch.setattr("os.dup2", lambda *args: None)  # rich would close the real standard output
    console = Console(file=Gone(), width=100, force_terminal=terminal)
    assert train(tiny(tmp_path, epochs=1), console=console).steps == 5


def test_other_processes_are_silent():
    assert type(make_reporter(Console(), first=False)) is Reporter


def test_paths_are_not_taken_for_markup():
    console = Console(file=io.StringIO(), width=40)
    make_reporter(console, first=True).message("[bold]/a/[very]/long/path/that/is/longer/than/a/line")
    assert output(console) == "[bold]/a/[very]/long/path/that/is/longer/than/a/line\n"


@pytest.mark.parametrize(("seconds", "text"), [(3, "3 s"), (90, "2 min"), (3600, "1 h 00 min"), (7500, "2 h 05 min")])
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_headlines_in_words():
    assert show_metric("accuracy", 0.12345) == "12.35 %"
    assert show_metric("distance", 2.6e-15) == "2.6e-15"


def test_metrics_in_words():
    assert describe({"train_loss": 1.23456, "test_accuracy": 0.5}) == "train loss 1.235 · test accuracy 50.0 %"
    assert describe({"test_loss": 0.00912345}) == "test loss 9.12e-03"
