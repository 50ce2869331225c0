"""Ctrl-C while a command imports what takes seconds: PyTorch, Matplotlib, Optuna, Ray."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT


@contextmanager
def importing() -> Iterator[None]:
    """End at once and without a traceback on Ctrl-C.

    While packages are imported, there is nothing to save, and compiled ones may swallow a `KeyboardInterrupt`.

    Example:
        with importing():
            from package import function
    """

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, b"spatialgrad: interrupted\n")
        os._exit(INTERRUPTED)

    try:
        before = signal.signal(signal.SIGINT, end)
    except ValueError:  # not in the main thread, which gets the signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
