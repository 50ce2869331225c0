"""Time spent in each phase, summed over all sessions of a run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

PHASES = ("training", "evaluation", "scaling", "checkpoint")


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
