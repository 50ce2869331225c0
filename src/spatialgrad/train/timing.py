"""Time: of each phase, summed over all sessions of a run, and of a training step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from spatialgrad.train.result import PHASES, StepSeconds

SKIPPED_STEPS = 5
"""First steps of a session, which allocate memory and compile: not timed."""
MOST_TIMES = 1000
"""Number of step times that are kept: of the newest steps."""
PACE_STEPS, PACE_SECONDS = 20, 60.0
"""The duration of a training is estimated after so many steps or seconds of a session, whichever comes first."""


class Clock:
    """Measures the seconds of each phase; time outside all phases, such as loading data, is not counted."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._phase: str | None = None
        self._since = 0.0

    @contextmanager
    def measuring(self, phase: str) -> Iterator[None]:
        """Count the time in this block to a phase; the enclosing phase continues afterwards."""
        outside = self._switch(phase)
        try:
            yield
        finally:
            self._switch(outside)

    def now(self) -> dict[str, float]:
        """Seconds of each phase so far."""
        running = time.perf_counter() - self._since
        return {phase: value + (running if phase == self._phase else 0.0) for phase, value in self.seconds.items()}

    def load(self, seconds: Mapping[str, float]) -> None:
        """Continue from the seconds of an earlier session."""
        self.seconds = {phase: float(seconds.get(phase, 0.0)) for phase in PHASES}

    def _switch(self, phase: str | None) -> str | None:
        self.seconds, outside = self.now(), self._phase
        self._phase, self._since = phase, time.perf_counter()
        return outside


class StepTimer:
    """Times steps: by the processor time of this process on a CPU, by events on any other device.

    Neither depends on what else the machine does. Events do not make the CPU wait for the device.

    Args:
        device: Of the training.
        seconds: Times of earlier sessions.
    """

    def __init__(self, device: torch.device, seconds: Iterable[float] = ()) -> None:
        self._device, self._skip = device, SKIPPED_STEPS
        self._seconds = deque(seconds, maxlen=MOST_TIMES)
        self._events: list[tuple[Any, Any]] = []

    @contextmanager
    def measuring(self, ordinary: bool = True) -> Iterator[None]:
        """Time the step in this block, if it is an ordinary one."""
        if self._skip or not ordinary:
            yield
            self._skip = max(0, self._skip - 1)
        elif self._device.type == "cpu":
            start = time.process_time()
            yield
            self._seconds.append(time.process_time() - start)
        else:
            kind = getattr(torch, self._device.type).Event
            start, end = kind(enable_timing=True), kind(enable_timing=True)
            start.record()
            yield
            end.record()
            self._events.append((start, end))

    def seconds(self) -> list[float]:
        """The times so far; makes the CPU wait for the device."""
        if self._events:
            self._events[-1][1].synchronize()
            self._seconds.extend(start.elapsed_time(end) / 1000 for start, end in self._events)
            self._events.clear()
        return list(self._seconds)

    def summary(self) -> StepSeconds | None:
        """Median, 10th and 90th percentile; None if no step was timed."""
        values = torch.tensor(self.seconds(), dtype=torch.float64)
        if not len(values):
            return None
        low, median, high = torch.quantile(values, torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)).tolist()
        return StepSeconds(median=median, low=low, high=high)


class Pace:
    """The wall-clock time of the first steps of a session, from which the duration of a training is estimated.

    Args:
        clock: Gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._times: list[float] | None = [clock()]

    def after_step(self) -> float | None:
        """Count a step; returns the seconds per step, once, when enough steps were made."""
        if self._times is None:
            return None
        self._times.append(self._clock())
        number, elapsed = len(self._times) - 1, self._times[-1] - self._times[0]
        if number < PACE_STEPS and elapsed < PACE_SECONDS:
            return None
        # The first steps allocate memory and compile. Where steps are slow, that makes little difference.
        skipped = min(SKIPPED_STEPS, number // 2)
        pace = (self._times[-1] - self._times[skipped]) / (number - skipped)
        self._times = None
        return pace
