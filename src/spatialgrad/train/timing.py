"""Time: of each phase, summed over all sessions of a run, and of a training step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from spatialgrad.train.result import PHASES, StepSeconds

SKIPPED_STEPS = 5
"""First steps of a session, which allocate memory and compile: not timed."""
MOST_TIMES = 1000
"""Number of step times that are kept; of more steps, evenly spaced ones."""


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

    @property
    def total(self) -> float:
        """Seconds of all phases."""
        return sum(self.now().values())

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
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds: list[float] = []
        self._events: list[tuple[Any, Any]] = []
        self._every, self._seen, self._skip = 1, 0, SKIPPED_STEPS

    @contextmanager
    def measuring(self, ordinary: bool = True) -> Iterator[None]:
        """Time the step in this block, if it is an ordinary one."""
        if not ordinary:
            yield
            return
        if self._device.type == "cpu":
            start = time.process_time()
            yield
            self._add(time.process_time() - start)
            return
        kind = getattr(torch, self._device.type).Event
        events = kind(enable_timing=True), kind(enable_timing=True)
        events[0].record()
        yield
        events[1].record()
        self._events.append(events)

    def collect(self) -> None:
        """Read the events so far, which makes the CPU wait for the device: after an epoch."""
        if self._events:
            self._events[-1][1].synchronize()
            for start, end in self._events:
                self._add(start.elapsed_time(end) / 1000)
            self._events.clear()

    def summary(self) -> StepSeconds | None:
        """Median, 10th and 90th percentile; None if no step was timed."""
        self.collect()
        if not self._seconds:
            return None
        low, median, high = quantiles(self._seconds, (0.1, 0.5, 0.9))
        return StepSeconds(median=median, low=low, high=high)

    def state_dict(self) -> dict[str, Any]:
        """The times so far."""
        self.collect()
        return {"seconds": list(self._seconds), "every": self._every}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the times of an earlier session."""
        self._seconds, self._every = list(state["seconds"]), int(state["every"])

    def _add(self, seconds: float) -> None:
        if self._skip:
            self._skip -= 1
            return
        self._seen += 1
        if self._seen % self._every == 0:
            self._seconds.append(seconds)
        if len(self._seconds) > MOST_TIMES:
            self._seconds, self._every = self._seconds[::2], self._every * 2


def quantiles(values: Sequence[float], shares: Sequence[float]) -> list[float]:
    """Quantiles of some values, interpolated linearly."""
    wanted = torch.tensor(shares, dtype=torch.float64)
    return torch.quantile(torch.tensor(values, dtype=torch.float64), wanted).tolist()
