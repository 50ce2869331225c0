"""From the last step to the result: merge, evaluate the merged network, write examples and result."""

from __future__ import annotations

import torch
from torch import nn

from spatialgrad.reparam import count
from spatialgrad.train.engine.evaluation import check_agreement
from spatialgrad.train.engine.trainer import Trainer
from spatialgrad.train.runs.folder import METRICS, read_lines
from spatialgrad.train.runs.predictions import NUM_EXAMPLES, write_examples
from spatialgrad.train.runs.result import Result, peak_memory


def finish(trainer: Trainer) -> Result:
    """Merge and evaluate the network of a completed training, and write its result.

    Raises:
        DeployError: If the merged network does not agree with the trained one.
    """
    config, machine, task, method = trainer.config, trainer.machine, trainer.task, trainer.learner.method
    headline = f"test_{task.headline}"
    tested = [line for line in machine.on_first(lambda: read_lines(trainer.folder / METRICS)) if headline in line]
    trained = {name.removeprefix("test_"): v for name, v in tested[-1].items() if name.startswith("test_")}
    module = trainer.learner.whole_module()
    deployed = method.finish(module)
    test = trained
    if deployed.merged is not None and deployed.merged.layers:
        test = trainer.test(machine.in_precision(deployed.model))
        check_agreement(trained, test, task, config.machine.precision)
    test = {**test, **method.results()}
    metric = method.headline or task.headline
    training_cost, cost = count(module, task.input_size), count(deployed.model, task.input_size)
    result = Result(
        model=config.model.name,
        dataset=task.description,
        method=config.method.name,
        seed=config.seed,
        epochs=config.budget.epochs,
        steps=trainer.position.step,
        metric=metric,
        value=test[metric],
        test=test,
        best=max(line[headline] for line in tested) if method.headline is None else test[metric],
        trained=trained,
        merge_difference=deployed.merged.largest.relative if deployed.merged else None,
        seconds=trainer.clock.total,
        **{f"{phase}_seconds": value for phase, value in trainer.clock.now().items()},
        parameters=cost.parameters,
        macs=cost.macs,
        training_parameters=training_cost.parameters,
        training_macs=training_cost.macs,
        peak_memory_bytes=max(trainer.peak_memory, peak_memory(machine.device)),
        inaction=method.inaction(),
    )
    machine.on_first(lambda: _write_examples(trainer, deployed.model))
    machine.on_first(lambda: result.write(trainer.folder))
    return result


def _write_examples(trainer: Trainer, model: nn.Module) -> None:
    with torch.no_grad():
        gallery = trainer.task.examples(trainer.machine.in_precision(model.eval()), NUM_EXAMPLES)
    if gallery is not None:
        write_examples(trainer.folder, gallery)
