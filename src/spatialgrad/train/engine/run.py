"""Start or resume a run in its folder, which is locked against other processes."""

from __future__ import annotations

import datetime
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from spatialgrad.models.external import describe_source
from spatialgrad.models.external import is_external as is_outside
from spatialgrad.reparam import Count
from spatialgrad.torch_utils.freed_memory import keeping_freed_memory
from spatialgrad.train.config.groups import TrainConfig
from spatialgrad.train.config.io import flatten
from spatialgrad.train.engine.finish import finish
from spatialgrad.train.engine.machine import Machine
from spatialgrad.train.engine.signals import Stop
from spatialgrad.train.engine.trainer import Trainer
from spatialgrad.train.errors import DamagedFileError
from spatialgrad.train.preflight import check_logging, check_network, check_optimizer
from spatialgrad.train.pretrained import check_backbone
from spatialgrad.train.runs.console import Reporter, duration, make_reporter, show_metric
from spatialgrad.train.runs.environment import describe_environment
from spatialgrad.train.runs.folder import ENVIRONMENT, claim, locked, read_config, read_json, write_json
from spatialgrad.train.runs.result import Result, read_result
from spatialgrad.train.tasks import TASKS


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
        machine = Machine(config.machine)
        reporter = make_reporter(console, first=machine.is_first)
        stop.report_to(reporter.message)
        stack.enter_context(machine.noticing_lost_processes())
        if machine.device.type == "cpu":
            stack.enter_context(keeping_freed_memory())
        task = TASKS[config.task](config, machine.device)
        machine.on_first(lambda: check_network(config, task, machine.world_size))
        machine.on_first(lambda: check_backbone(config, task, reporter.message))
        machine.on_first(lambda: check_optimizer(config))
        machine.on_first(lambda: check_logging(config))
        machine.on_first(lambda: stack.enter_context(locked(config.folder)))
        before = machine.on_first(lambda: claim(config.folder, config))
        if before is not None:
            reporter.message(f"{config.folder} is extended from {before} to {config.budget.epochs} epochs.")
        result: Result | None = machine.on_first(lambda: read_result(config.folder))
        if result is not None:
            reporter.message(f"{config.folder} has already finished.")
        else:
            trainer = Trainer(config, machine, task, reporter, stop)
            stack.callback(trainer.close)
            if machine.is_first:
                _announce(trainer, reporter)
                _record_session(trainer, reporter)
            try:
                trainer.run()
                result = finish(trainer)
            finally:
                reporter.stop()
        reporter.message(summarize(result, config.folder))
        return result


def resume(folder: Path | str, *, console: Console | None = None) -> Result:
    """Resume the run in a folder.

    Raises:
        ConfigError: If the folder holds no run.
    """
    return train(replace(read_config(Path(folder)), out=Path(folder)), console=console)


def summarize(result: Result, folder: Path) -> str:
    """The result in a few lines."""
    merged = ""
    if result.merge_difference is not None:
        before = Count(result.training_parameters, result.training_macs)
        merged = f"\n  merged      from {before}; largest difference {result.merge_difference:.0e}"
    share = result.scaling_seconds / result.seconds if result.seconds else 0.0
    value, best = (show_metric(result.metric, number) for number in (result.value, result.best))
    measured = f"on the test images of {result.dataset} (best epoch {best})"
    if result.metric not in result.trained:
        measured = f"after {result.steps} steps on {result.dataset}"
    note = f"\n  note        {result.method} never acted: {result.inaction}" if result.inaction else ""
    return (
        f"{result.metric} {value} {measured}\n"
        f"  network     {Count(result.parameters, result.macs)}{merged}\n"
        f"  time        {duration(result.seconds)}, of which scaling {100 * share:.1f} %\n"
        f"  memory      {result.peak_memory_bytes / 2**20:,.0f} MB peak\n"
        f"  folder      {folder}\n"
        f"  export      spatialgrad export {folder} --onnx{note}"
    )


def _announce(trainer: Trainer, reporter: Reporter) -> None:
    config, machine = trainer.config, trainer.machine
    at = trainer.position
    where = f"{machine.world_size} × {machine.device.type}" if machine.world_size > 1 else machine.device.type
    resuming = f"\n  resuming    after step {at.step} (epoch {at.epoch + 1})" if at.step else ""
    reporter.message(
        f"{config.model.name} on {trainer.task.description}, method {config.method.name}, seed {config.seed}\n"
        f"  network     {trainer.learner.cost}\n"
        f"  schedule    {config.budget.epochs} epochs of {trainer.steps_per_epoch} steps, batch "
        f"{config.data.batch_size}, {config.optimizer.name}, learning rate {config.optimizer.learning_rate:g}\n"
        f"  machine     {where}, {config.machine.precision}\n"
        f"  folder      {config.folder} (config, metrics, scalings, checkpoint)\n"
        f"  resume      the same command, or: spatialgrad resume {config.folder}{resuming}"
    )
    inaction = trainer.learner.method.inaction()
    if inaction is not None:
        reporter.message(f"{config.method.name} never acts in this training: {inaction}.")


def _record_session(trainer: Trainer, reporter: Reporter) -> None:
    """Write the environment, or report how it differs from the first session's."""
    path = trainer.folder / ENVIRONMENT
    environment = describe_environment(trainer.machine.device, trainer.machine.world_size)
    if is_outside(trainer.config.model.name):
        environment["model"] = describe_source(trainer.config.model.name)
    session: dict[str, Any] = {
        "session": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "step": trainer.position.step,
    }
    first = _read_environment(path, reporter)
    if first is None:
        write_json(path, environment)
    else:
        before, now = flatten(first), flatten(environment)
        changed = {name: value for name, value in now.items() if name != "command" and before.get(name) != value}
        if changed:
            session["changed"] = changed
            names = ", ".join(changed)
            reporter.message(f"The environment has changed ({names}): results may differ in the last digits.")
            if not changed.keys().isdisjoint(("model.sha256", "model.version")):
                reporter.message(f"{trainer.config.model.name} is built by other code than in the first session.")
    trainer.timings.append(session)


def _read_environment(path: Path, reporter: Reporter) -> dict[str, Any] | None:
    """The environment of the first session; None if there was none, or its file is damaged, which is then renamed."""
    if not path.exists():
        return None
    try:
        return read_json(path)
    except DamagedFileError as error:
        kept = path.rename(path.with_stem(f"{path.stem}.damaged"))
        reporter.message(f"{error}. Kept as {kept.name}, and written again.")
        return None
