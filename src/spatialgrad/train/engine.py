"""The training loop: any task, any method, and from any step on where it was left."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from spatialgrad.capture import for_one_process, gathering
from spatialgrad.data.seeding import generator_for
from spatialgrad.distributed import all_reduce_
from spatialgrad.reparam import count
from spatialgrad.train.checkpoint import load_checkpoint, save_checkpoint
from spatialgrad.train.clock import Clock
from spatialgrad.train.config import TrainConfig
from spatialgrad.train.deploy import check_agreement, rebuild_model
from spatialgrad.train.errors import ConfigError, DivergedError, InterruptedTraining
from spatialgrad.train.machine import Machine
from spatialgrad.train.methods import METHODS, EpochContext
from spatialgrad.train.optimizers import build_optimizer
from spatialgrad.train.progress import Plan, Reporter
from spatialgrad.train.result import Result, peak_memory
from spatialgrad.train.run_folder import METRICS, TIMINGS, Lines, read_lines
from spatialgrad.train.schedule import learning_rate
from spatialgrad.train.stop import Stop
from spatialgrad.train.tasks import Sums, Task
from spatialgrad.train.tasks.base import add_
from spatialgrad.train.tensorboard import Board

CHECKPOINT_SHARE = 0.01
"""Largest share of the time that checkpoints may take."""
AGREEMENT_STEPS = 10
"""Steps between two words of several processes with each other, and between two looks at the loss on a GPU."""

# What a process has to say after a step; the largest counts. Signals are in between, by their number.
_GO_ON, _SAVE, _SIGNAL, _DIVERGED = 0, 1, 2, 1000


@dataclass
class Position:
    """Where a training is: before the batch `batch` of the epoch `epoch`, after `step` steps in all."""

    epoch: int = 0
    batch: int = 0
    step: int = 0


class Trainer:
    """One run, from building or loading it to its result.

    Args:
        config: Of the run.
        machine: The processes that train together.
        task: What is learned.
        reporter: Whom to tell.
        stop: Whether someone wants it to stop.
    """

    def __init__(self, config: TrainConfig, machine: Machine, task: Task, reporter: Reporter, stop: Stop) -> None:
        self.config, self.machine, self.task, self.reporter, self.stop = config, machine, task, reporter, stop
        self.folder = config.folder
        self.clock, self.position = Clock(), Position()
        self.sums: Sums = {}
        self.steps_per_epoch = task.steps_per_epoch(machine.world_size)
        self.method = METHODS[config.method.name](config)
        self.logs = {name: Lines(self.folder / name) for name in (METRICS, self.method.log_file) if name}
        self.timings = Lines(self.folder / TIMINGS)
        self.peak_memory = 0
        self._saved_step, self._saved_at, self._save_took = 0, time.monotonic(), 0.0
        if machine.shards and self.method.grows:
            raise ConfigError(f"{config.method.name} changes the network while it trains, which fsdp cannot; use ddp")
        torch.manual_seed(config.seed)
        self.module = task.build_model()
        self.method.prepare_(self.module)
        machine.place_(self.module)
        self.cost = count(self.module, task.input_size)
        # A sharded network has other parameters; any other is wrapped when its structure is the checkpoint's.
        wrapped = machine.wrap(self.module) if machine.shards else None
        self._inner_optimizer = build_optimizer(config.optimizer, self.module.parameters())
        self.method.attach(self.module, self._inner_optimizer)
        self._restore()
        self.model = wrapped or machine.wrap(self.module)
        self.optimizer: Any = machine.fabric.setup_optimizers(self._inner_optimizer)
        self.board = Board(self.folder, self.position.step) if config.tensorboard and machine.is_first else None

    def run(self) -> Result:
        """Train to the end, test, merge, and write the result."""
        epochs, at = self.config.budget.epochs, self.position
        self.reporter.start(Plan(epochs=epochs, steps_per_epoch=self.steps_per_epoch, epoch=at.epoch, batch=at.batch))
        try:
            with self.clock.measuring("training"):
                while at.epoch < epochs:
                    self._train_epoch()
                    self._close_epoch()
                if self._saved_step < at.step or not at.step:
                    self._save()
            return self._finish()
        finally:
            self.reporter.stop()
            for lines in (*self.logs.values(), self.timings):
                lines.close()
            if self.board is not None:
                self.board.close()

    def _train_epoch(self) -> None:
        at = self.position
        if at.batch == 0:
            self._before_epoch()
        self.model.train()
        for batch in self._train_batches(start=at.batch):
            self._step(batch)
            at.batch, at.step = at.batch + 1, at.step + 1
            self.reporter.step(at.epoch, at.batch, self.task.images_in(batch) * self.machine.world_size)
            if self.reporter.wants_totals:
                self.reporter.totals(self.task.metrics(self.sums))
            self._look_around()

    def _before_epoch(self) -> None:
        epoch = self.position.epoch
        network = for_one_process(self.model)
        context = EpochContext(
            epoch=epoch,
            batches=self._train_batches(),
            forward=lambda _, batch: self.task.forward(network, batch),
        )
        with self.clock.measuring("scaling"), self._telling(f"{self.config.method.name}: measuring"):
            update = self.method.before_epoch(context)
        if update.log and self.machine.is_first and self.method.log_file:
            self.logs[self.method.log_file].append({"step": self.position.step, "epoch": epoch, **update.log})
        if update.changed_structure:
            self.model = self.machine.wrap(self.module)

    def _step(self, batch: Any) -> None:
        at, machine = self.position, self.machine
        # Dropout is a function of seed, step and rank, so that no random state has to be saved.
        torch.manual_seed(generator_for("step", self.config.seed, at.step, machine.rank).initial_seed())
        lr = self._learning_rate(at.step)
        for group in self._inner_optimizer.param_groups:
            group["lr"] = lr
        loss, sums = self.task.loss(self.model, batch)
        if machine.world_size > 1:
            # Gradients are averaged over processes: give every image the same weight where shares differ.
            whole = self.task.batch_size(at.batch, machine.world_size)
            loss = loss * (self.task.images_in(batch) * machine.world_size / whole)
        machine.fabric.backward(loss)
        if self.config.optimizer.clip_norm is not None:
            machine.fabric.clip_gradients(self.model, self.optimizer, max_norm=self.config.optimizer.clip_norm)
        self.method.before_step(at.step)
        self.optimizer.step()
        self.optimizer.zero_grad()
        add_(self.sums, sums)

    def _learning_rate(self, step: int) -> float:
        config, largest = self.config, self.config.optimizer.learning_rate
        return learning_rate(
            config.schedule, largest, step, steps_per_epoch=self.steps_per_epoch, epochs=config.budget.epochs
        )

    def _look_around(self) -> None:
        """After a step or an epoch: save, stop or go on, all processes alike."""
        at, machine = self.position, self.machine
        together = at.step % AGREEMENT_STEPS == 0 or at.batch in (0, self.steps_per_epoch)
        code = _GO_ON
        if machine.is_first and self._save_is_due():
            code = _SAVE
        if self.stop.signal:
            code = _SIGNAL + self.stop.signal
        if (together or machine.device.type == "cpu") and self.sums and not bool(self.sums["loss"].isfinite()):
            code = _DIVERGED
        if machine.world_size > 1:
            code = machine.agree(code) if together else _GO_ON
        if code == _DIVERGED:
            raise self._diverged("loss is")
        if code == _SAVE:
            self._save()
        elif code >= _SIGNAL:
            self._leave(code - _SIGNAL)

    def _leave(self, signal: int) -> None:
        if self._saved_step < self.position.step or not self._saved_step:
            self._save()
        at = self.position
        raise InterruptedTraining(
            signal,
            f"stopped after step {at.step} (epoch {at.epoch + 1} of {self.config.budget.epochs}), all of it saved.\n"
            f"To go on: spatialgrad resume {self.folder}",
        )

    def _save_is_due(self) -> bool:
        budget = self.config.budget
        if budget.checkpoint_steps is not None:
            return self.position.step % budget.checkpoint_steps == 0 and self.position.step > self._saved_step
        since = time.monotonic() - self._saved_at
        return since >= max(budget.checkpoint_seconds, self._save_took / CHECKPOINT_SHARE)

    def _close_epoch(self) -> None:
        at, config = self.position, self.config
        values: dict[str, float] = {"lr": self._learning_rate(at.step - 1)}
        values |= _prefixed("train", self._metrics(self.sums))
        last = at.epoch + 1 == config.budget.epochs
        if last or (at.epoch + 1) % config.budget.evaluate_every == 0:
            self.machine.share_buffers_(self.module)
            values |= _prefixed("test", self.evaluate(self.machine.for_evaluation(self.model)))
        if self.machine.is_first:
            self.logs[METRICS].append({"step": at.step, "epoch": at.epoch, **values})
            self.timings.append({"step": at.step, "epoch": at.epoch, "seconds": self.clock.now()})
            if self.board is not None:
                self.board.add(values, at.step)
        self.reporter.epoch(at.epoch, {name: value for name, value in values.items() if name != "lr"})
        self.sums = {}
        at.epoch, at.batch = at.epoch + 1, 0
        self._look_around()

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The metrics of a network on the test images, over all processes."""
        machine, sums = self.machine, Sums()
        batches = self.task.eval_batches(rank=machine.rank, world_size=machine.world_size)
        if machine.agree(int(len(batches) == 0)):
            raise ConfigError(f"{self.task.description} has too few test images for {machine.world_size} processes")
        rounds, source = machine.agree(len(batches)), iter(batches)
        model.eval()
        with self.clock.measuring("evaluation"), self._telling("testing"), gathering(model) as gather:
            for _ in range(rounds):
                gather()
                batch = next(source, None)
                if batch is not None:
                    add_(sums, self.task.evaluate(model, batch))
                if self.stop.signal and machine.world_size == 1 and self.position.batch:
                    self._leave(self.stop.signal)
            return self._metrics(sums)

    def _metrics(self, sums: Sums) -> dict[str, float]:
        totals = {name: value.clone() for name, value in sums.items()}
        all_reduce_([(totals[name], "sum") for name in sorted(totals)])
        return self.task.metrics(totals)

    def _save(self) -> None:
        at, machine = self.position, self.machine
        weights = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        norms = torch.stack(
            [
                norm.full_tensor() if hasattr(norm, "full_tensor") else norm
                for norm in torch._foreach_norm([weight.detach() for weight in weights])
            ]
        )
        if not bool(norms.isfinite().all()):
            raise self._diverged("weights are")
        start = time.monotonic()
        with self.clock.measuring("checkpoint"):
            state = {
                "format": 1,
                "epoch": at.epoch,
                "batch": at.batch,
                "step": at.step,
                **machine.model_state(self.module, self._inner_optimizer),
                "method": self.method.state_dict(),
                "precision": machine.fabric.strategy.precision.state_dict(),
                "sums": machine.gather({name: value.cpu() for name, value in self.sums.items()}),
            }
            machine.on_first(lambda: self._write(state))
        self._saved_step, self._saved_at = at.step, time.monotonic()
        self._save_took = self._saved_at - start

    def _write(self, state: dict[str, Any]) -> None:
        # First the lines, then the checkpoint that knows how many there are.
        state["lines"] = {name: lines.sync() for name, lines in self.logs.items()}
        self.peak_memory = max(self.peak_memory, peak_memory(self.machine.device))
        state |= {"seconds": self.clock.now(), "peak_memory": self.peak_memory}
        save_checkpoint(self.folder, state)

    def _restore(self) -> None:
        machine = self.machine
        state: dict[str, Any] | None = machine.on_first(lambda: load_checkpoint(self.folder, self.reporter.message))
        lengths: Mapping[str, int] = {} if state is None else state["lines"]
        machine.on_first(lambda: [lines.cut(lengths.get(name, 0)) for name, lines in self.logs.items()] and None)
        if state is None:
            return
        self.method.load_state_dict(state["method"])
        machine.load_model_state_(self.module, self._inner_optimizer, state)
        machine.fabric.strategy.precision.load_state_dict(state["precision"])
        self.position = Position(epoch=state["epoch"], batch=state["batch"], step=state["step"])
        self.sums = {name: value.to(machine.device) for name, value in self._own_sums(state["sums"]).items()}
        self.clock.load(state["seconds"])
        self.peak_memory = int(state["peak_memory"])
        self._saved_step = self.position.step

    def _own_sums(self, every: list[Sums]) -> Sums:
        """What this process has counted of the epoch; with another number of processes, the first takes it all."""
        if len(every) == self.machine.world_size:
            return every[self.machine.rank]
        whole = {name: torch.stack([sums[name] for sums in every]).sum(0) for name in every[0]}
        return whole if self.machine.is_first else {name: torch.zeros_like(value) for name, value in whole.items()}

    def _finish(self) -> Result:
        config, machine, task = self.config, self.machine, self.task
        lines = machine.on_first(lambda: read_lines(self.folder / METRICS))
        tested = [line for line in lines if f"test_{task.headline}" in line]
        trained = {name.removeprefix("test_"): v for name, v in tested[-1].items() if name.startswith("test_")}
        module = self._whole_module()
        deployed = self.method.finish(module)
        test = trained
        if deployed.merged is not None and deployed.merged.layers:
            test = self.evaluate(machine.in_precision(deployed.model))
            check_agreement(trained, test, task.headline, config.machine.precision)
        costs = {"training": count(module, task.input_size), "deployed": count(deployed.model, task.input_size)}
        seconds = self.clock.now()
        result = Result(
            model=config.model.name,
            dataset=task.description,
            method=config.method.name,
            seed=config.seed,
            epochs=config.budget.epochs,
            steps=self.position.step,
            metric=task.headline,
            value=test[task.headline],
            test=test,
            best=max(line[f"test_{task.headline}"] for line in tested),
            trained=trained,
            merge_difference=deployed.merged.largest.relative if deployed.merged else None,
            seconds=self.clock.total,
            **{f"{phase}_seconds": value for phase, value in seconds.items()},
            parameters=costs["deployed"].parameters,
            macs=costs["deployed"].macs,
            training_parameters=costs["training"].parameters,
            training_macs=costs["training"].macs,
            peak_memory_bytes=max(self.peak_memory, peak_memory(machine.device)),
        )
        machine.on_first(lambda: result.write(self.folder))
        return result

    def _whole_module(self) -> nn.Module:
        if not self.machine.shards:
            return self.module
        state = self.machine.model_state(self.module, self._inner_optimizer)
        state = self.machine.fabric.broadcast({"model": state["model"], "method": self.method.state_dict()})
        module = rebuild_model(self.task, state)
        self.machine.place_(module)
        return module

    def _train_batches(self, start: int = 0) -> Any:
        machine = self.machine
        return self.task.train_batches(
            self.position.epoch, start=start, rank=machine.rank, world_size=machine.world_size
        )

    @contextmanager
    def _telling(self, phase: str) -> Any:
        self.reporter.phase(phase)
        try:
            yield
        finally:
            self.reporter.phase("")

    def _diverged(self, what: str) -> DivergedError:
        at, optimizer = self.position, self.config.optimizer
        last = (
            f"the checkpoint of step {self._saved_step} is untouched" if self._saved_step else "there is no checkpoint"
        )
        return DivergedError(
            f"the {what} not finite any more at step {at.step} (epoch {at.epoch + 1}); {last}.\nTry a lower learning "
            f"rate (--optimizer.lr is {optimizer.learning_rate:g}), a warm-up (--schedule.warmup-epochs 1) or clipping "
            "(--optimizer.clip-norm 1), in another folder."
        )


def _prefixed(prefix: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}_{name}": value for name, value in metrics.items()}
