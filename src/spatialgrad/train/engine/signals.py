"""SIGINT, SIGTERM and SIGHUP as a wish to stop: the step is finished and saved first."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """Remembers the first signal; a second SIGINT stops at once.

    Args:
        report: Called with a line of text when the signal comes.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self.signal = 0
        self._report, self._process = report, os.getpid()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals; outside of the main thread, where Python cannot, do nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # What nohup, or a shell in the background, has the process ignore stays ignored.
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._handle) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            self._handle_in_worker(number)
            return
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number
        if number != signal.SIGHUP:  # after which there is no terminal to write to
            self._report(f"{signal.Signals(number).name}: finishing the step and saving.")

    def _handle_in_worker(self, number: int) -> None:
        """A process that loads images has inherited this handler; Ctrl-C reaches it too, and it is needed on."""
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
