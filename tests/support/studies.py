"""Tiny studies, and an executor that trains in this very process: a run of a second or two."""

import io
import json
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from spatialgrad.cli.main import main
from spatialgrad.studies.console import StudyReporter
from spatialgrad.studies.launch import Ended
from spatialgrad.studies.plan import make_plan
from spatialgrad.studies.registry import STUDIES
from spatialgrad.studies.runner import PlanJobs, run_jobs
from spatialgrad.studies.study import Arm, Published, Search, Study
from spatialgrad.train import Result, Run, TrainError
from spatialgrad.train.result import PHASES
from spatialgrad.train.signals import Stop
from support.training import SILENT, quietly, tiny


def tiny_config(method="baseline", **groups):
    return replace(tiny("unused", method, **{"epochs": 2, **groups}), out=None)


def tiny_study(*, epochs=2, failing=False, tuned=False, failing_points=None, name="tiny"):
    """Baseline and SGS; if wished, an arm that diverges, and one that a search of three points tunes.

    Args:
        epochs: Of every run.
        failing: Whether there is an arm that diverges.
        tuned: Whether there is a search.
        failing_points: Whether half of its points diverge; by default if an arm does.
        name: Of the study.
    """

    def arms(scale):
        group = {"Dataset": "Fashion-MNIST"}
        published = (Published(mean=50.0, std=0.5),)
        found = [
            Arm(
                group=group,
                label="Origin",
                config=tiny_config(epochs=epochs),
                reference=True,
                published=published,
            ),
            Arm(group=group, label="SGS (ours)", config=tiny_config("sgs", epochs=epochs)),
        ]
        if failing:
            found.append(Arm(group=group, label="wild", config=tiny_config(optimizer={"lr": 1e30})))
        if tuned:
            found.append(Arm(group=group, label="tuned", config=tiny_config("sgs-static"), tuned_by="alpha"))
        return tuple(found)

    def searches(scale):
        if not tuned:
            return ()
        config = tiny_config("sgs-static", epochs=1, data={"validation": 0.2, "limit": 120})
        rates = (0.05, 1e30) if (failing if failing_points is None else failing_points) else (0.05,)
        return (Search(name="alpha", config=config, grid={"scaling.alpha": (0.8, 5.0), "optimizer.lr": rates}),)

    scales = ("paper", "desk", "pocket")
    return Study(
        name=name,
        title="A tiny study",
        shows="no table",
        question="Does it run?",
        arms=arms,
        searches=searches,
        num_seeds=dict.fromkeys(scales, 1),
        differences=dict.fromkeys(scales, "Everything is tiny."),
        times=dict.fromkeys(scales, "seconds"),
    )


class InProcess:
    """An executor that trains one run after the other, here; remembers in which order."""

    slots = 1

    def __init__(self, before=None):
        self.order, self.before = [], before or (lambda folder: None)

    def submit(self, folder, *, processes):
        self.order.append(folder)
        self.before(folder)
        future = Future()
        try:
            self.train(folder)
            future.set_result(Ended(exit_code=0))
        except TrainError as error:
            future.set_result(Ended(exit_code=error.exit_code, message=str(error)))
        return future

    def train(self, folder):
        quietly(replace(Run.open(folder).config, out=folder))

    def cancel(self, folder):
        pass

    def close(self):
        pass


class Pretending(InProcess):
    """Writes results without training."""

    def train(self, folder):
        write_result(folder, 0.5)


def write_result(folder, value):
    """The result of the run in a folder, with made-up numbers."""
    config = Run.open(folder).config
    counts = dict.fromkeys(("parameters", "macs", "training_parameters", "training_macs", "peak_memory_bytes"), 1)
    seconds = dict.fromkeys(("seconds", *(f"{phase}_seconds" for phase in PHASES)), 1.0)
    known = {"model": config.model.name, "dataset": "made up", "method": config.method.name, "seed": config.seed}
    values = {"metric": "accuracy", "value": value, "best": value, "merge_difference": None, "steps": 1}
    metrics = {name: {"accuracy": value} for name in ("test", "trained")}
    Run.open(folder).finish(Result(**known, **counts, **seconds, **values, **metrics, epochs=config.budget.epochs))


def run_here(study, folder, *, executor=None, console=SILENT, stop=None, archive=None, **options):
    """Plan and run a study in this process; the jobs as they have ended, and the executor."""
    executor = executor or InProcess()
    plan, reporter = make_plan(study, "pocket", Path(folder), **options), StudyReporter(console)
    jobs = PlanJobs(plan, reporter, archive=archive)
    reporter.start(len(plan.jobs), len(jobs.finished))
    run_jobs(jobs, executor, reporter, stop or Stop())
    return jobs, executor


@contextmanager
def registered(study):
    """Have the command line know a study."""
    STUDIES[study.name] = study
    try:
        yield
    finally:
        del STUDIES[study.name]


def run_command(study_options, *arguments):
    """The command line with a tiny study, for `Process(function=...)`."""
    with registered(tiny_study(**study_options)):
        return main([str(argument) for argument in arguments])


def results(folder):
    """Time and content of every result below a folder."""
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(Path(folder).rglob("result.json"))}


def sessions(run):
    """How often a run was started."""
    lines = [json.loads(line) for line in (Path(run) / "timings.jsonl").read_text().splitlines()]
    return sum("session" in line for line in lines)


def console():
    """One to read from."""
    return Console(file=io.StringIO(), width=200)
