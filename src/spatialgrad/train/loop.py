"""The way of a training: build everything in memory, claim the run's folder, train any task by any method, finish.

Nothing is written before everything is built, so that a command that is refused leaves nothing behind.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from spatialgrad.data import DataError, fingerprint
from spatialgrad.reparam import count
from spatialgrad.train.config import TrainConfig
from spatialgrad.train.console import Reporter, make_reporter
from spatialgrad.train.errors import CheckpointError, DivergedError, FolderInUseError, InterruptedTraining
from spatialgrad.train.evaluation import check_agreement, evaluate, metrics_of_all
from spatialgrad.train.examples import NUM_EXAMPLES, write_examples
from spatialgrad.train.identity import Identity, explain_difference
from spatialgrad.train.learner import Learner, build_learner
from spatialgrad.train.quantize import int8_metrics
from spatialgrad.train.result import Result
from spatialgrad.train.run import METRICS, TIMINGS, Run
from spatialgrad.train.runtime import Runtime, peak_memory
from spatialgrad.train.session import describe_result, describe_start, record_session
from spatialgrad.train.signals import Stop, describe_signal
from spatialgrad.train.tasks import find_task
from spatialgrad.train.tasks.base import Sums, add_
from spatialgrad.train.tensorboard import Board
from spatialgrad.train.timing import Clock, Pace, StepTimer

CHECKPOINT_SHARE = 0.01
"""Largest share of the time that checkpoints may take."""
AGREEMENT_STEPS = 10
"""Steps between two agreements of several processes, and between two checks of the loss on a GPU."""

# What a process requests after a step; the largest of all processes counts. Signals lie in between, by their number.
_CONTINUE, _SAVE, _SIGNAL, _DIVERGED = 0, 1, 2, 1000


def train(config: TrainConfig, *, console: Console | None = None) -> Result:
    """Train to the end, or resume where an earlier session stopped.

    Args:
        config: Of the run. Its folder may hold the same run, finished or not, or one of fewer epochs to extend.
        console: Where to print; by default the standard output.

    Returns:
        The result, which is also written to the folder.

    Raises:
        TrainError: If the training cannot start or continue; each reason has a class and an exit code.
        DataError: If the data set is missing or damaged.
    """
    stop = Stop()
    # From the start: a process that a signal ended before it met the others would leave them waiting.
    with stop.listening(), ExitStack() as stack:
        runtime = Runtime(config.machine)
        reporter = make_reporter(console, first=runtime.is_first)
        stack.enter_context(runtime.training())
        task = find_task(config.task)(config, runtime.device)
        data = runtime.on_first(lambda: fingerprint(task.dataset))
        identity = Identity(config, data, runtime.world_size)
        run = Run.open(config.folder)
        result: Result | None = runtime.on_first(lambda: _finished(run, identity))
        if result is not None:
            reporter.message(f"{run.name} has already finished.")
        else:
            is_new: bool = runtime.on_first(lambda: not run.has_checkpoint)
            learner = build_learner(config, runtime, task, reporter.message, is_new=is_new)
            stack.callback(run.release)
            state = runtime.on_first(lambda: _claim(run, identity, is_new))
            if runtime.is_first and run.extended_from is not None:
                reporter.message(f"{run.name} is extended from {run.extended_from} to {config.budget.epochs} epochs.")
            trainer = Trainer(run, identity, learner, reporter, stop, state)
            stack.callback(trainer.close)
            if runtime.is_first:
                at = trainer.position
                reporter.message(describe_start(learner, at.epoch, at.step))
                record_session(run, runtime, at.step, reporter)
            try:
                trainer.run_epochs()
                result = trainer.finish()
            finally:
                reporter.stop()
        reporter.message(describe_result(result, run.folder))
        return result


def resume(folder: Path | str, *, console: Console | None = None) -> Result:
    """Resume the run in a folder.

    Raises:
        ConfigError: If the folder holds no run.
    """
    return train(replace(Run.open(folder).config, out=Path(folder)), console=console)


def _finished(run: Run, identity: Identity) -> Result | None:
    """The result of a run that has finished already."""
    return run.result if run.is_finished and not explain_difference(run.identity, identity) else None


def _claim(run: Run, identity: Identity, is_new: bool) -> dict[str, Any] | None:
    state = run.claim(identity)
    if is_new != (state is None):  # the network was built for the other case
        raise FolderInUseError(f"another process has changed {run.name} in the meantime; run the same command again")
    return state


@dataclass
class Position:
    """Position of a training: before batch `batch` of epoch `epoch`, after `step` steps in total."""

    epoch: int = 0
    batch: int = 0
    step: int = 0


class Trainer:
    """One run, from its first or next step to its result.

    Args:
        run: The claimed run.
        identity: Of the run.
        learner: Network, method and optimizer.
        reporter: Prints the progress.
        stop: Whether a signal has arrived.
        state: Of the run's checkpoint; None for a new run.
    """

    def __init__(
        self,
        run: Run,
        identity: Identity,
        learner: Learner,
        reporter: Reporter,
        stop: Stop,
        state: Mapping[str, Any] | None,
    ) -> None:
        self.run, self.identity, self.learner, self.reporter, self.stop = run, identity, learner, reporter, stop
        self.config, self.runtime, self.task = learner.config, learner.runtime, learner.task
        self.steps_per_epoch = learner.steps_per_epoch
        self.position, self.clock, self.peak_memory = Position(), Clock(), 0
        self.step_timer = StepTimer(self.runtime.device)
        self.sums: Sums = {}
        self._saved: Position | None = None
        self._saved_at, self._save_took = time.monotonic(), 0.0
        self._pace = Pace()
        if state is not None:
            self._load(state)
        learner.start()
        writes = self.config.tensorboard and self.runtime.is_first
        self.board = Board(run.folder, self.position.step) if writes else None

    def run_epochs(self) -> None:
        """Train to the end, and save."""
        at, epochs = self.position, self.config.budget.epochs
        self.reporter.start(epochs, self.steps_per_epoch, at.step, seconds=lambda: self.clock.now()["training"])
        with self.clock.measuring("training"):
            while at.epoch < epochs:
                self._train_epoch()
                self._close_epoch()
            self._save_unless_saved()

    def finish(self) -> Result:
        """Merge and evaluate the network, write examples and the result.

        Raises:
            DeployError: If the merged network does not agree with the trained one.
        """
        runtime, task, method = self.runtime, self.task, self.learner.method
        headline = f"test_{task.headline}"
        tested = [line for line in runtime.on_first(lambda: self.run.metrics) if headline in line]
        trained = {name.removeprefix("test_"): v for name, v in tested[-1].items() if name.startswith("test_")}
        module = self.learner.whole_module()
        deployed = method.finish(module)
        test = trained
        if deployed.merged is not None and deployed.merged.layers:
            test = dict(self._test(runtime.in_precision(deployed.model)))
            check_agreement(trained, test, task, self.config.machine.precision)
        weight_ranges = None
        if self.config.budget.int8:
            self.reporter.message("Evaluating the network in INT8.")
            int8, weight_ranges = runtime.on_first(lambda: int8_metrics(deployed.model, task))
            test = {**test, **int8}
        test = {**test, **method.results()}
        metric = method.headline or task.headline
        training_cost, cost = count(module, task.input_size), count(deployed.model, task.input_size)
        seconds = self.clock.now()
        result = Result(
            model=self.config.model.name,
            dataset=task.description,
            method=self.config.method.name,
            seed=self.config.seed,
            epochs=self.config.budget.epochs,
            steps=self.position.step,
            metric=metric,
            value=test[metric],
            test=test,
            best=max(line[headline] for line in tested) if method.headline is None else test[metric],
            trained=trained,
            merge_difference=deployed.merged.largest.relative if deployed.merged else None,
            seconds=sum(seconds.values()),
            **{f"{phase}_seconds": value for phase, value in seconds.items()},
            parameters=cost.parameters,
            macs=cost.macs,
            training_parameters=training_cost.parameters,
            training_macs=training_cost.macs,
            peak_memory_bytes=max(self.peak_memory, peak_memory(runtime.device)),
            step_seconds=self.step_timer.summary(),
            memory_format=runtime.memory_format,
            identity=self.identity.digest,
            weight_ranges=weight_ranges,
            no_effect=method.no_effect_reason(),
        )
        runtime.on_first(lambda: self._write_result(result, deployed.model))
        return result

    def close(self) -> None:
        """Close what the run does not close itself."""
        if self.board is not None:
            self.board.close()

    def _write_result(self, result: Result, model: nn.Module) -> None:
        with torch.no_grad():
            gallery = self.task.examples(self.runtime.in_precision(model.eval()), NUM_EXAMPLES)
        if gallery is not None:
            write_examples(self.run.folder, gallery)
        self.run.finish(result)

    def _train_epoch(self) -> None:
        at = self.position
        if at.batch == 0:
            with self._phase("update", f"{self.config.method.name}: measuring"):
                update = self.learner.before_epoch(at.epoch)
            self._log(update.log)
        self.learner.model.train()
        for batch in self._train_batches():
            with self.step_timer.measuring(ordinary=not self.learner.method.busy):
                sums, entry = self.learner.step(batch, at.step)
            add_(self.sums, sums)
            at.batch, at.step = at.batch + 1, at.step + 1
            self._log(entry)
            self.reporter.step(self.task.images_in(batch) * self.runtime.world_size)
            if self.reporter.wants_totals:
                self.reporter.totals(self.task.metrics(self.sums))
            self._save_or_stop()
            self._log_pace()

    def _train_batches(self) -> Iterator[Any]:
        at = self.position
        try:
            yield from self.learner.train_batches(at.epoch, start=at.batch)
        except Exception as error:
            # Save what was learned before a file became unreadable, or before Ctrl-C ended workers that do not share
            # this process's handler.
            if self.runtime.world_size == 1 and not self.learner.method.busy:
                if self.stop.signal:
                    self._leave(self.stop.signal)
                if isinstance(error, DataError):
                    self._save_unless_saved()
            raise

    def _log_pace(self) -> None:
        """Log the time of a step once in a session, so that whoever started this run can tell how long it will take."""
        pace, at = self._pace.after_step(), self.position
        if pace is not None and self.runtime.is_first:
            steps = self.config.budget.epochs * self.steps_per_epoch
            self.run.log(TIMINGS, {"step": at.step, "steps": steps, "step_seconds": pace})

    def _log(self, entry: Mapping[str, Any]) -> None:
        """Append to the method's log."""
        at, log_file = self.position, self.learner.method.log_file
        if entry and log_file and self.runtime.is_first:
            self.run.log(log_file, {"step": at.step, "epoch": at.epoch, **entry})
            if self.board is not None and "scalings" in entry:
                self.board.add_scalings(entry["scalings"], at.step)

    def _close_epoch(self) -> None:
        at, budget = self.position, self.config.budget
        values = {"lr": self.learner.learning_rate(at.step - 1)}
        values |= _prefixed("train", metrics_of_all(self.task, self.sums))
        if (at.epoch + 1) % budget.evaluate_every == 0 or at.epoch + 1 == budget.epochs:
            self.runtime.share_buffers_(self.learner.module)
            values |= _prefixed("test", self._test(self.runtime.for_evaluation(self.learner.model)))
        if self.runtime.is_first:
            self.run.log(METRICS, {"step": at.step, "epoch": at.epoch, **values})
            self.run.log(TIMINGS, {"step": at.step, "epoch": at.epoch, "seconds": self.clock.now()})
            if self.board is not None:
                self.board.add(values, at.step)
        self.reporter.epoch({name: value for name, value in values.items() if name != "lr"})
        self.sums = {}
        at.epoch, at.batch = at.epoch + 1, 0
        self._save_or_stop()

    def _test(self, model: nn.Module) -> dict[str, float]:
        """Evaluate a network on the test images."""

        def between(number: int) -> None:
            # The last step of the epoch is complete, so that the run can be saved and stopped here as well.
            if self.learner.method.busy:
                return
            signal = self.stop.signal
            if self.runtime.world_size > 1:
                signal = self.runtime.agree(signal) if number % AGREEMENT_STEPS == 0 else 0
            if signal:
                self._leave(signal)

        with self._phase("evaluation", "evaluating"):
            try:
                return evaluate(self.task, self.runtime, model, between)
            except DataError:
                if self.runtime.world_size == 1 and not self.learner.method.busy:
                    self._save_unless_saved()
                raise

    def _save_or_stop(self) -> None:
        """After a step or an epoch: save, stop or continue, in all processes alike.

        Not while the method is busy: a checkpoint of that moment would not resume to the same bits.
        """
        at, runtime = self.position, self.runtime
        together = at.step % AGREEMENT_STEPS == 0 or at.batch in (0, self.steps_per_epoch)
        code = _CONTINUE
        if not self.learner.method.busy:
            if runtime.is_first and self._save_is_due():
                code = _SAVE
            if self.stop.signal:
                code = _SIGNAL + self.stop.signal
        if (together or runtime.device.type == "cpu") and self.sums and not bool(self.sums["loss"].isfinite()):
            code = _DIVERGED
        if runtime.world_size > 1:
            code = runtime.agree(code) if together else _CONTINUE
        if code == _DIVERGED:
            raise self._diverged("loss")
        if code == _SAVE:
            self._save()
        elif code >= _SIGNAL:
            self._leave(code - _SIGNAL)

    def _leave(self, signal: int) -> None:
        self.reporter.message(describe_signal(signal))
        self._save_unless_saved()
        at = self.position
        raise InterruptedTraining(
            signal,
            f"stopped and saved after step {at.step} of {self.config.budget.epochs * self.steps_per_epoch}.\n"
            f"To resume: spatialgrad resume {shlex.quote(str(self.run.folder))}",
        )

    def _save_is_due(self) -> bool:
        budget = self.config.budget
        if budget.checkpoint_steps is not None:
            saved = self._saved.step if self._saved else 0
            return self.position.step // budget.checkpoint_steps > saved // budget.checkpoint_steps
        since = time.monotonic() - self._saved_at
        return since >= max(budget.checkpoint_seconds, self._save_took / CHECKPOINT_SHARE)

    def _save_unless_saved(self) -> None:
        if self._saved != self.position:
            self._save()

    def _save(self) -> None:
        if not self.learner.is_finite():
            raise self._diverged("weights")
        runtime, start = self.runtime, time.monotonic()
        with self.clock.measuring("checkpoint"):
            self.peak_memory = max(self.peak_memory, peak_memory(runtime.device))
            state = {
                "network": {
                    "num_classes": self.task.num_classes,
                    "input_size": list(self.task.input_size),
                    "preprocessing": self.task.preprocessing,
                },
                "epoch": self.position.epoch,
                "batch": self.position.batch,
                "step": self.position.step,
                **self.learner.state_dict(),
                "sums": runtime.gather({name: value.cpu() for name, value in self.sums.items()}),
                "seconds": self.clock.now(),
                "step_seconds": self.step_timer.seconds(),
                "peak_memory": self.peak_memory,
            }
            runtime.on_first(lambda: self.run.save(state))
        self._saved, self._saved_at = replace(self.position), time.monotonic()
        self._save_took = self._saved_at - start

    def _load(self, state: Mapping[str, Any]) -> None:
        try:
            self.learner.load_state_dict(state)
            self.position = Position(epoch=state["epoch"], batch=state["batch"], step=state["step"])
            own = state["sums"][self.runtime.rank]
            self.sums = {name: value.to(self.runtime.device) for name, value in own.items()}
            self.clock.load(state["seconds"])
            self.step_timer = StepTimer(self.runtime.device, state["step_seconds"])
            self.peak_memory = int(state["peak_memory"])
        except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise CheckpointError(
                f"the checkpoint in {self.run.name} does not fit this run: {error}\n"
                "Restore the run's own checkpoint, or choose another folder with --out to start over."
            ) from error
        self._saved = replace(self.position)

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
