"""What a training prints: progress bars on a terminal, plain lines everywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
)
from rich.table import Column
from rich.text import Text

REFRESH = 0.25
"""Seconds between two reads of the running totals, which make a GPU wait, and between two redraws of the bars."""
SILENCE = 60.0
"""Seconds between two progress lines of a long epoch, where there are no bars."""


class Reporter:
    """Prints nothing: for all processes but the first."""

    wants_totals = False
    """Whether to call `totals` now."""

    def start(
        self, epochs: int, steps_per_epoch: int, completed: int = 0, seconds: Callable[[], float] = time.perf_counter
    ) -> None:
        """Training starts, or resumes.

        Args:
            epochs: Of the whole training.
            steps_per_epoch: Of each epoch.
            completed: Number of completed steps.
            seconds: Gives the seconds of training so far, without evaluations.
        """

    def step(self, images: int) -> None:
        """A step is complete."""

    def totals(self, metrics: Mapping[str, float]) -> None:
        """Show the running averages of the epoch."""

    def epoch(self, metrics: Mapping[str, float]) -> None:
        """An epoch is complete."""

    def phase(self, name: str) -> None:
        """Another phase than training starts, such as an evaluation; an empty name ends it."""

    def message(self, text: str) -> None:
        """Print a message for the user."""

    def stop(self) -> None:
        """Training has ended."""


class _Speaking(Reporter):
    interval = REFRESH

    def __init__(self, console: Console) -> None:
        self.console, self._gone = console, False
        self._completed, self._images, self._since = 0, 0, 0.0

    def start(
        self, epochs: int, steps_per_epoch: int, completed: int = 0, seconds: Callable[[], float] = time.perf_counter
    ) -> None:
        self._epochs, self._steps, self._seconds = epochs, steps_per_epoch, seconds
        self._completed = self._completed_before = completed
        self._began = self._looked = time.perf_counter()
        self._begin_epoch()
        self.show()

    def show(self) -> None:
        """Draw what is updated from now on."""

    def step(self, images: int) -> None:
        self._completed, self._images = self._completed + 1, self._images + images
        now = time.perf_counter()
        self.wants_totals = now - self._looked > self.interval
        if self.wants_totals:
            self._looked = now

    def epoch(self, metrics: Mapping[str, float]) -> None:
        self._begin_epoch()

    def message(self, text: str) -> None:
        with self.surviving():
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def position(self) -> tuple[int, int]:
        """The epoch of the last step, counted from 1, and the number of steps completed in it."""
        epoch = max(0, self._completed - 1) // self._steps
        return epoch + 1, self._completed - epoch * self._steps

    def rate(self) -> str:
        """Training images per second since the start of the epoch."""
        return f"{self._images / max(1e-9, self._seconds() - self._since):,.0f} images/s"

    @contextmanager
    def surviving(self) -> Iterator[None]:
        """Continue silently when the terminal, or the other end of a pipe, is gone; the run's folder has everything."""
        try:
            yield
        except (OSError, SystemExit):  # the latter is what rich makes of a broken pipe
            self._gone = self.console.quiet = True

    def _begin_epoch(self) -> None:
        self._images, self._since = 0, self._seconds()


class _Bars(_Speaking):
    """Two bars on a terminal: the whole training, and the epoch with its metrics and images per second."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.bars = Progress(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=20),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            _Note(table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            console=console,
            expand=True,
            refresh_per_second=1 / REFRESH,
        )

    def show(self) -> None:
        (epoch, batch), total = divmod(self._completed, self._steps), self._epochs * self._steps
        self._whole = self.bars.add_task("training", total=total, completed=self._completed, note="")
        self._now = self.bars.add_task(f"epoch {epoch + 1}", total=self._steps, completed=batch, note="")
        with self.surviving():
            self.bars.start()

    def step(self, images: int) -> None:
        super().step(images)
        if self.wants_totals or self._completed % self._steps == 0:
            self._move()

    def totals(self, metrics: Mapping[str, float]) -> None:
        self.bars.update(self._now, note=f"{describe(metrics)} · {self.rate()}")

    def phase(self, name: str) -> None:
        if name:
            self.bars.update(self._now, note=name)

    def epoch(self, metrics: Mapping[str, float]) -> None:
        super().epoch(metrics)
        tested = {name: value for name, value in metrics.items() if name.startswith("test")}
        trained = {name: value for name, value in metrics.items() if name not in tested}
        self._move()
        self.bars.update(self._whole, note=describe(tested or metrics))
        epoch, _ = self.position()
        if epoch < self._epochs:  # a bar that was full stays marked as finished unless it is reset
            self.bars.reset(self._now, total=self._steps, description=f"epoch {epoch + 1}", note="")
        else:
            self.bars.update(self._now, note=describe(trained))

    def stop(self) -> None:
        if not self._gone:
            with self.surviving():
                self.bars.stop()

    def _move(self) -> None:
        epoch, batch = self.position()
        self.bars.update(self._now, description=f"epoch {epoch}", completed=batch)
        self.bars.update(self._whole, completed=self._completed)


class _PlainLines(_Speaking):
    """A line per epoch, and one per minute within long epochs: for log files."""

    interval = SILENCE

    def totals(self, metrics: Mapping[str, float]) -> None:
        epoch, batch = self.position()
        where = f"epoch {epoch}/{self._epochs} step {batch}/{self._steps}"
        self.message(f"{where}  {describe(metrics)} · {self.rate()} · {self._left()} left")

    def epoch(self, metrics: Mapping[str, float]) -> None:
        epoch, _ = self.position()
        rate = f" · {self.rate()}" if self._images else ""
        left = f" · {self._left()} left" if epoch < self._epochs else ""
        self.message(f"epoch {epoch}/{self._epochs}  {describe(metrics)}{rate}{left}")
        self._looked = time.perf_counter()
        super().epoch(metrics)

    def _left(self) -> str:
        seconds_per_step = (time.perf_counter() - self._began) / max(1, self._completed - self._completed_before)
        return duration(seconds_per_step * (self._epochs * self._steps - self._completed))


def make_reporter(console: Console | None, *, first: bool) -> Reporter:
    """Bars on a terminal, lines elsewhere, nothing in all processes but the first."""
    if not first:
        return Reporter()
    console = console or Console()
    return _Bars(console) if console.is_terminal and not console.is_dumb_terminal else _PlainLines(console)


def show_metric(name: str, value: float) -> str:
    """The headline metric of a result as text: shares in per cent, distances as they are."""
    return f"{value:.1e}" if name == "distance" else f"{100 * value:.2f} %"


def describe(metrics: Mapping[str, float]) -> str:
    """Metrics as text: losses as they are, shares in per cent."""
    parts = []
    for name, value in metrics.items():
        small = name == "lr" or (name.endswith("loss") and value < 0.01)
        shown = f"{value:.2e}" if small else f"{value:.3f}" if name.endswith("loss") else f"{100 * value:.1f} %"
        parts.append(f"{name.replace('_', ' ')} {shown}")
    return " · ".join(parts)


def duration(seconds: float) -> str:
    """Seconds as text, such as "2 h 05 min"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    hours, minutes = divmod(minutes, 60)
    return f"{minutes} min" if not hours else f"{hours} h {minutes:02d} min"


class _Note(ProgressColumn):
    """The latest metrics; for the first bar, the whole training, also the elapsed and remaining time."""

    def render(self, task: Task) -> Text:
        note = task.fields["note"]
        if task.id != 0:
            return Text(note)
        left = "" if task.finished or task.time_remaining is None else f", {duration(task.time_remaining)} left"
        time_and_note = [duration(task.elapsed or 0.0) + left, note]
        return Text(" · ".join(filter(None, time_and_note)))
