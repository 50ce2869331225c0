"""Measure variants side by side on a noisy machine: interleaved rounds, medians."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from multiprocessing.connection import Connection

Opener = Callable[[], AbstractContextManager[Callable[[], object]]]
"""Prepares a variant, returns it, and cleans up after it."""


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


@contextmanager
def in_own_processes(
    variants: Mapping[str, Opener], clock: Callable[[], float] = time.perf_counter
) -> Iterator[dict[str, Callable[[], float]]]:
    """Variants for `interleaved_medians` in a process each: what one does to its process does not affect the others.

    Args:
        variants: Can be pickled; each is opened in its process.
        clock: Measures a call, in that process.
    """
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    processes = []
    try:
        for name, opener in variants.items():
            pipes[name], other = context.Pipe()
            processes.append(context.Process(target=_serve, args=(other, opener, clock), daemon=True))
            processes[-1].start()
            other.close()
            pipes[name].recv()
        yield {name: partial(_ask, pipe) for name, pipe in pipes.items()}
    finally:
        for pipe in pipes.values():
            pipe.close()
        for process in processes:
            process.join()


def _serve(pipe: Connection, opener: Opener, clock: Callable[[], float]) -> None:
    with opener() as run:
        pipe.send(None)
        try:
            while True:
                pipe.recv()
                start = clock()
                run()
                pipe.send(clock() - start)
        except EOFError:  # the other end was closed
            pass


def _ask(pipe: Connection) -> float:
    pipe.send(None)
    seconds: float = pipe.recv()
    return seconds
