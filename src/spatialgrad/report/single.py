"""The report of a single training: a study of one run."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path

from spatialgrad.report.load import read_run
from spatialgrad.report.results import ArmResults, StudyResults
from spatialgrad.report.tables.cells import Cell, Column, Table, capital, metric_name, without_empty_columns
from spatialgrad.report.tables.cost import cost_table
from spatialgrad.studies.record import StudyRecord
from spatialgrad.studies.study import Arm, RunRecord
from spatialgrad.train.config import TrainConfig, changed_fields, flatten, to_dict
from spatialgrad.train.errors import DamagedFileError
from spatialgrad.train.flags import flag
from spatialgrad.train.result import Result
from spatialgrad.train.run import Run

DEFAULT_METRIC = "accuracy"
SCALING_FIGURES = ("scalings", "centre-share", "dependence")


def load_single(folder: Path) -> StudyResults:
    """The run in a folder as a study with one arm.

    Raises:
        ConfigError: If its config cannot be read.
    """
    config, metric = Run.open(folder).config, _metric(Run.open(folder))
    record = RunRecord(folder=folder.resolve().name, seed=config.seed)
    run = read_run(partial(Run.open, folder), record, None, curves=metric, folder=folder)
    label = f"{config.method.name} on {config.data.name}"
    arm = Arm(group={}, label=config.method.name, reference=True, config=config, runs=(record,))
    figures = ("learning-curves", *(SCALING_FIGURES if run.has_scalings else ()), "overhead")
    command = run.environment.get("command", [])
    study = StudyRecord(
        name="train",
        title=folder.resolve().name,
        shows=f"{config.model.name}, {label}",
        question="",
        scale="own",
        seeds=(config.seed,),
        layout="rows",
        figures=figures + (("distances",) if run.distances else ()) + (("examples",) if run.examples else ()),
        metric=metric,
        cost_unit=None,
        published_seeds=None,
        differences="",
        arms=(arm,),
        command=shlex.join(command),
    )
    return StudyResults(folder=folder, record=study, arms=(ArmResults(record=arm, name=arm.label, runs=(run,)),))


def single_tables(study: StudyResults) -> tuple[Table, ...]:
    """Result, changed settings and cost of the only run."""
    (arm,) = study.arms
    (run,) = arm.runs
    tables = [_settings_table(run.open().config)]
    if run.result is not None:
        tables = [_result_table(run.result), *tables, without_empty_columns(cost_table(study, study.shown))]
    return tuple(tables)


def _metric(run: Run) -> str:
    """The headline metric, as far as the files tell; damage is told when the run is read."""
    try:
        logged = [name.removeprefix("test_") for line in run.metrics for name in line if name.startswith("test_")]
        own = [run.result.metric] if run.result is not None else []
    except DamagedFileError:
        return DEFAULT_METRIC
    return next((name for name in (*own, *logged) if name in logged and not name.endswith("loss")), DEFAULT_METRIC)


def _result_table(result: Result) -> Table:
    """All metrics of the deployed network on test images; and before merging, where that differs."""
    titles = ["After training"] + (["Before merging"] if result.merge_difference is not None else [])
    sources = [result.test, result.trained][: len(titles)]
    rows = [
        (
            Cell(lines=(capital(metric_name(name)),)),
            *(Cell(lines=(_shown(name, source.get(name)),), sort=source.get(name)) for source in sources),
        )
        for name in result.test
    ]
    best = f"Best {metric_name(result.metric)} of all evaluated epochs: {_shown(result.metric, result.best)}."
    notes = [f"On the test images of {result.dataset}.", best]
    notes += [f"The method had no effect: {result.no_effect}."] if result.no_effect else []
    columns = (Column(title="Metric", numeric=False), *(Column(title=title) for title in titles))
    return Table(caption="Result", columns=columns, rows=tuple(rows), notes=tuple(notes))


def _settings_table(config: TrainConfig) -> Table:
    """The settings that are not at their defaults."""
    default = flatten(to_dict(TrainConfig()))
    rows = [
        (Cell(lines=(flag(name),)), Cell(lines=(f"{value}",)), Cell(lines=(f"{default[name]}",)))
        for name, value in changed_fields(config).items()
    ]
    columns = tuple(Column(title=title, numeric=False) for title in ("Setting", "Value", "Default"))
    return Table(caption="Settings that differ from the defaults", columns=columns, rows=tuple(rows))


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "not finite"
    return f"{value:.4g}" if name.endswith("loss") or name == "distance" else f"{100 * value:.2f} %"
