"""Signals as requests to stop: the current step is completed and saved first.

SIGUSR1 and SIGUSR2 are how cluster schedulers announce the end of a job (`sbatch --signal=USR1@120`).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Stop:
    """Remembers the first signal; a second SIGINT stops at once.

    The handler does nothing else: it may interrupt any line, even one that prints. Who looks at `signal` says so.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._process = os.getpid()

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
            # In a process that loads images, which has inherited this handler and must survive Ctrl-C.
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
        elif self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            self.signal = self.signal or number


def describe_signal(number: int) -> str:
    """What is printed once a signal is noticed."""
    return f"{signal.Signals(number).name} received: saving a checkpoint and stopping."
