"""SIGINT, SIGTERM and SIGHUP as requests to stop: the current step is completed and saved first."""

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
        report: Called with a message when a signal arrives; None until `report_to`.
    """

    def __init__(self, report: Callable[[str], None] | None = None) -> None:
        self.signal = 0
        self._report, self._process = report, os.getpid()

    def report_to(self, report: Callable[[str], None]) -> None:
        """Report signals from now on, and one that has arrived already."""
        self._report = report
        if self.signal:
            self._say(self.signal)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals; outside the main thread, where Python cannot, do nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # Signals that nohup, or a background shell, lets the process ignore stay ignored.
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
        self._say(number)

    def _say(self, number: int) -> None:
        if self._report is not None and number != signal.SIGHUP:  # after it, there is no terminal to write to
            self._report(f"{signal.Signals(number).name}: completing the step and saving.")

    def _handle_in_worker(self, number: int) -> None:
        """In a process that loads images, which has inherited this handler and must survive Ctrl-C."""
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
