"""Seconds of phases and steps."""

import time

import pytest
import torch

from spatialgrad.train import Run, timing
from spatialgrad.train.timing import MOST_TIMES, SKIPPED_STEPS, Clock, Pace, StepTimer
from support.training import quietly, tiny

CPU = torch.device("cpu")


def timer(monkeypatch, seconds, skip=SKIPPED_STEPS):
    """A timer of steps that take these numbers of seconds of processor time."""
    found, now = StepTimer(CPU), [0.0]
    monkeypatch.setattr(time, "process_time", lambda: now[0])
    for each in [100.0] * skip + list(seconds):
        with found.measuring():
            now[0] += each
    return found


def test_the_first_steps_and_those_of_updates_do_not_count(monkeypatch):
    found = timer(monkeypatch, [1.0, 2.0, 3.0, 4.0, 5.0])
    with found.measuring(ordinary=False):
        pass
    summary = found.summary()
    assert (summary.median, summary.low, summary.high) == (3.0, pytest.approx(1.4), pytest.approx(4.6))
    assert StepTimer(CPU).summary() is None


def test_long_trainings_keep_few_times_and_resume(monkeypatch):
    found = timer(monkeypatch, [1.0] * MOST_TIMES + [2.0] * (MOST_TIMES - 10))
    assert (found.seconds().count(1.0), found.seconds().count(2.0)) == (10, MOST_TIMES - 10)
    assert StepTimer(CPU, found.seconds()).summary() == found.summary()


def test_a_run_knows_the_time_of_its_steps(finished):
    result = Run.open(finished).result
    steps = result.step_seconds
    assert 0 < steps.low <= steps.median <= steps.high
    assert steps.median < result.training_seconds


def test_nested_phases(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    clock = Clock()
    with clock.measuring("training"):
        now[0] = 2.0
        with clock.measuring("evaluation"):
            now[0] = 5.0
        now[0] = 6.0
    now[0] = 100.0
    assert clock.now() == {"training": 3.0, "evaluation": 3.0, "update": 0.0, "checkpoint": 0.0}


@pytest.mark.parametrize(
    ("steps", "at", "expected"),
    [
        ([5.0] * 5 + [2.0] * 15, 20, 2.0),  # without those that allocate memory and compile
        ([50.0, 40.0], 2, 40.0),  # where steps are slow, after a minute
        ([70.0], 1, 70.0),
        ([0.1] * 19, None, None),
    ],
)
def test_the_pace_is_known_after_the_first_steps(steps, at, expected):
    now = [0.0]
    pace = Pace(clock=lambda: now[0])
    found = {}
    for number, seconds in enumerate([*steps, *([1.0] * 3 if at else [])], 1):
        now[0] += seconds
        if (value := pace.after_step()) is not None:
            found[number] = value
    assert found == ({} if at is None else {at: pytest.approx(expected)})


def test_a_run_estimates_its_duration_from_its_first_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "PACE_STEPS", 4)
    quietly(tiny(tmp_path, epochs=1))
    run = Run.open(tmp_path)
    (entry,) = [entry for entry in run.timings if "step_seconds" in entry]
    assert (entry["step"], entry["steps"]) == (4, 5)
    assert entry["step_seconds"] > 0
    assert run.estimated_seconds == pytest.approx(5 * entry["step_seconds"])
