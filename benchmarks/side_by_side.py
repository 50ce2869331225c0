"""Measure variants side by side on a noisy machine: interleaved rounds, medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved_medians(
    variants: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median seconds per call of each variant; every round runs each once, in rotating order.

    A variant that returns a number of seconds has measured itself.
    """
    names = list(variants)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-warmup, rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = clock()
            own = variants[name]()
            if turn >= 0:
                times[name].append(own if isinstance(own, float) else clock() - start)
    return {name: statistics.median(values) for name, values in times.items()}
