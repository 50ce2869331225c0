"""The training loop: any task, any method, resumed from any step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from spatialgrad.data import DataError
from spatialgrad.train.config.groups import TrainConfig
from spatialgrad.train.config.io import to_dict
from spatialgrad.train.engine.evaluation import evaluate, metrics_of_all, own_sums
from spatialgrad.train.engine.learner import Learner
from spatialgrad.train.engine.machine import Machine
from spatialgrad.train.engine.signals import Stop
from spatialgrad.train.errors import CheckpointError, DivergedError, InterruptedTraining
from spatialgrad.train.runs.checkpoint import check_identity, check_position, load_checkpoint, save_checkpoint
from spatialgrad.train.runs.console import Reporter
from spatialgrad.train.runs.folder import METRICS, TIMINGS
from spatialgrad.train.runs.lines import Lines, Logs
from spatialgrad.train.runs.result import peak_memory
from spatialgrad.train.runs.tensorboard import Board
from spatialgrad.train.runs.timings import Clock
from spatialgrad.train.tasks.base import Sums, Task, add_

CHECKPOINT_SHARE = 0.01
"""Largest share of the time that checkpoints may take."""
AGREEMENT_STEPS = 10
"""Steps between two agreements of several processes, and between two checks of the loss on a GPU."""

# What a process requests after a step; the largest of all processes counts. Signals lie in between, by their number.
_CONTINUE, _SAVE, _SIGNAL, _DIVERGED = 0, 1, 2, 1000


@dataclass
class Position:
    """Position of a training: before batch `batch` of epoch `epoch`, after `step` steps in total."""

    epoch: int = 0
    batch: int = 0
    step: int = 0


class Trainer:
    """One run, from building or loading it to its last step.

    Args:
        config: Of the run.
        machine: The processes that train together.
        task: Provides data, loss and metrics.
        reporter: Prints the progress.
        stop: Whether a signal has arrived.
    """

    def __init__(self, config: TrainConfig, machine: Machine, task: Task, reporter: Reporter, stop: Stop) -> None:
        self.config, self.machine, self.task, self.reporter, self.stop = config, machine, task, reporter, stop
        self.folder = config.folder
        self.learner = Learner(config, machine, task)
        self.steps_per_epoch = self.learner.steps_per_epoch
        self.position, self.clock, self.peak_memory = Position(), Clock(), 0
        self.sums: Sums = {}
        self.logs = Logs(self.folder, filter(None, [self.learner.method.log_file]))
        self.timings = Lines(self.folder / TIMINGS)
        self._saved: Position | None = None
        self._saved_at, self._save_took = time.monotonic(), 0.0
        self._restore()
        self.learner.start()
        self.board = Board(self.folder, self.position.step) if config.tensorboard and machine.is_first else None

    def run(self) -> None:
        """Train to the end, and save."""
        at, epochs = self.position, self.config.budget.epochs
        self.reporter.start(epochs=epochs, steps_per_epoch=self.steps_per_epoch, epoch=at.epoch, batch=at.batch)
        with self.clock.measuring("training"):
            while at.epoch < epochs:
                self._train_epoch()
                self._close_epoch()
            self._save_unless_saved()

    def test(self, model: nn.Module) -> dict[str, float]:
        """Evaluate a network on the test images."""

        def between() -> None:
            # The last step of the epoch is complete, so that the run can be saved and stopped here as well.
            if self.stop.signal and self.machine.world_size == 1:
                self._leave(self.stop.signal)

        with self._phase("evaluation", "evaluating"):
            try:
                return evaluate(self.task, self.machine, model, between)
            except DataError:
                if self.machine.world_size == 1:
                    self._save_unless_saved()
                raise

    def close(self) -> None:
        """Close all files."""
        self.logs.close()
        self.timings.close()
        if self.board is not None:
            self.board.close()

    def _train_epoch(self) -> None:
        at = self.position
        if at.batch == 0:
            self._before_epoch()
        self.learner.model.train()
        for batch in self._train_batches():
            sums, entry = self.learner.step(batch, at.step)
            add_(self.sums, sums)
            at.batch, at.step = at.batch + 1, at.step + 1
            self._log(entry)
            self.reporter.step(at.epoch, at.batch, self.task.images_in(batch) * self.machine.world_size)
            if self.reporter.wants_totals:
                self.reporter.totals(self.task.metrics(self.sums))
            self._save_or_stop()

    def _train_batches(self) -> Iterator[Any]:
        at = self.position
        try:
            yield from self.learner.train_batches(at.epoch, start=at.batch)
        except Exception as error:
            # Save what was learned before a file became unreadable, or before Ctrl-C ended workers that do not share
            # this process's handler.
            if self.machine.world_size == 1 and self.stop.signal:
                self._leave(self.stop.signal)
            if self.machine.world_size == 1 and isinstance(error, DataError):
                self._save_unless_saved()
            raise

    def _before_epoch(self) -> None:
        with self._phase("scaling", f"{self.config.method.name}: measuring"):
            update = self.learner.before_epoch(self.position.epoch)
        self._log(update.log)

    def _log(self, entry: Mapping[str, Any]) -> None:
        """Append to the method's log."""
        at, log_file = self.position, self.learner.method.log_file
        if entry and log_file and self.machine.is_first:
            self.logs.append(log_file, {"step": at.step, "epoch": at.epoch, **entry})
            if self.board is not None and "scalings" in entry:
                self.board.add_scalings(entry["scalings"], at.step)

    def _close_epoch(self) -> None:
        at, budget = self.position, self.config.budget
        values = {"lr": self.learner.learning_rate(at.step - 1)}
        values |= _prefixed("train", metrics_of_all(self.task, self.sums))
        if (at.epoch + 1) % budget.evaluate_every == 0 or at.epoch + 1 == budget.epochs:
            self.machine.share_buffers_(self.learner.module)
            values |= _prefixed("test", self.test(self.machine.for_evaluation(self.learner.model)))
        if self.machine.is_first:
            self.logs.append(METRICS, {"step": at.step, "epoch": at.epoch, **values})
            self.timings.append({"step": at.step, "epoch": at.epoch, "seconds": self.clock.now()})
            if self.board is not None:
                self.board.add(values, at.step)
        self.reporter.epoch(at.epoch, {name: value for name, value in values.items() if name != "lr"})
        self.sums = {}
        at.epoch, at.batch = at.epoch + 1, 0
        self._save_or_stop()

    def _save_or_stop(self) -> None:
        """After a step or an epoch: save, stop or continue, in all processes alike."""
        at, machine = self.position, self.machine
        together = at.step % AGREEMENT_STEPS == 0 or at.batch in (0, self.steps_per_epoch)
        code = _CONTINUE
        if machine.is_first and self._save_is_due():
            code = _SAVE
        if self.stop.signal:
            code = _SIGNAL + self.stop.signal
        if (together or machine.device.type == "cpu") and self.sums and not bool(self.sums["loss"].isfinite()):
            code = _DIVERGED
        if machine.world_size > 1:
            code = machine.agree(code) if together else _CONTINUE
        if code == _DIVERGED:
            raise self._diverged("loss")
        if code == _SAVE:
            self._save()
        elif code >= _SIGNAL:
            self._leave(code - _SIGNAL)

    def _leave(self, signal: int) -> None:
        self._save_unless_saved()
        at = self.position
        raise InterruptedTraining(
            signal,
            f"stopped and saved after step {at.step} of {self.config.budget.epochs * self.steps_per_epoch}.\n"
            f"To resume: spatialgrad resume {self.folder}",
        )

    def _save_is_due(self) -> bool:
        budget = self.config.budget
        if budget.checkpoint_steps is not None:
            return self.position.step % budget.checkpoint_steps == 0 and self.position != self._saved
        since = time.monotonic() - self._saved_at
        return since >= max(budget.checkpoint_seconds, self._save_took / CHECKPOINT_SHARE)

    def _save_unless_saved(self) -> None:
        if self._saved != self.position:
            self._save()

    def _save(self) -> None:
        if not self.learner.is_finite():
            raise self._diverged("weights")
        machine, start = self.machine, time.monotonic()
        with self.clock.measuring("checkpoint"):
            state = {
                "config": to_dict(self.config),
                "network": {"num_classes": self.task.num_classes, "input_size": list(self.task.input_size)},
                "epoch": self.position.epoch,
                "batch": self.position.batch,
                "step": self.position.step,
                **self.learner.state_dict(),
                "sums": machine.gather({name: value.cpu() for name, value in self.sums.items()}),
            }
            machine.on_first(lambda: self._write(state))
        self._saved, self._saved_at = replace(self.position), time.monotonic()
        self._save_took = self._saved_at - start

    def _write(self, state: dict[str, Any]) -> None:
        # The logs come first: the checkpoint records their lengths.
        lengths = self.logs.sync()
        self.peak_memory = max(self.peak_memory, peak_memory(self.machine.device))
        rest = {"lines": lengths, "seconds": self.clock.now(), "peak_memory": self.peak_memory}
        save_checkpoint(self.folder, {**state, **rest})

    def _restore(self) -> None:
        """Load the checkpoint, if there is one.

        The logs are cut last: a checkpoint that cannot be used leaves the folder unchanged.
        """
        state: dict[str, Any] | None = self.machine.on_first(self._read)
        if state is not None:
            try:
                self._load(state)
            except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
                raise CheckpointError(
                    f"the checkpoint in {self.folder} does not fit this run: {error}\n"
                    "Restore the run's own checkpoint, or choose another folder with --out to start over."
                ) from error
        self.machine.on_first(lambda: self._cut_logs(state))

    def _load(self, state: Mapping[str, Any]) -> None:
        self.learner.load_state_dict(state)
        self.position = Position(epoch=state["epoch"], batch=state["batch"], step=state["step"])
        self._saved = replace(self.position)
        self.sums = own_sums(state["sums"], self.machine)
        self.clock.load(state["seconds"])
        self.peak_memory = int(state["peak_memory"])

    def _read(self) -> dict[str, Any] | None:
        """The checkpoint, if it belongs to this run and the logs are complete."""
        state = load_checkpoint(self.folder, self.reporter.message)
        if state is None:
            return None
        check_identity(state, self.config)
        check_position(state, self.config, self.steps_per_epoch)
        self.logs.check(state["lines"], state["epoch"])
        return state

    def _cut_logs(self, state: Mapping[str, Any] | None) -> None:
        """Remove what was logged after the checkpoint."""
        if state is not None:
            self.logs.cut(state["lines"])
        elif kept := self.logs.start_over():
            self.reporter.message(
                f"{self.folder} has metrics but no checkpoint: starting over. The old logs are kept as "
                f"{' and '.join(kept)}."
            )

    @contextmanager
    def _phase(self, clock_phase: str, shown: str) -> Iterator[None]:
        self.reporter.phase(shown)
        try:
            with self.clock.measuring(clock_phase):
                yield
        finally:
            self.reporter.phase("")

    def _diverged(self, what: str) -> DivergedError:
        at, saved = self.position, self._saved
        last = f"the checkpoint of step {saved.step} is intact" if saved else "there is no checkpoint yet"
        return DivergedError(
            f"the {what} became non-finite at step {at.step} (epoch {at.epoch + 1}); {last}.\n"
            f"Try a lower learning rate (--optimizer.lr is {self.config.optimizer.learning_rate:g}), a warm-up "
            "(--schedule.warmup-epochs 1) or clipping (--optimizer.clip-norm 1), in another folder (--out)."
        )


def _prefixed(prefix: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}_{name}": value for name, value in metrics.items()}
