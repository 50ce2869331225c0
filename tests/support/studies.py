"""Tiny studies, and a launcher that trains in this very process: a run of a second or two."""

import io
import json
import os
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from spatialgrad.cli.main import main
from spatialgrad.studies.plan import make_plan
from spatialgrad.studies.registry import STUDIES
from spatialgrad.studies.run.console import StudyReporter
from spatialgrad.studies.run.launch import Ended
from spatialgrad.studies.run.runner import Runner
from spatialgrad.studies.study import Arm, Published, Search, Study
from spatialgrad.train import Run, TrainError
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
    """Trains one run after the other, here; remembers in which order."""

    def __init__(self, before=None):
        self.order, self.before = [], before or (lambda folder: None)
        self._ended = []

    running = 0

    @property
    def has_room(self):
        return not self._ended

    def start(self, folder, *, processes):
        self.order.append(folder)
        self.before(folder)
        try:
            quietly(replace(Run.open(folder).config, out=folder))
            self._ended.append(Ended(folder=folder, exit_code=0))
        except TrainError as error:
            self._ended.append(Ended(folder=folder, exit_code=error.exit_code, message=str(error)))

    def ended(self, timeout):
        ended, self._ended = self._ended, []
        return ended

    def stop(self):
        pass

    def close(self):
        pass


def run_here(study, folder, *, launcher=None, console=SILENT, stop=None, keep=None, **options):
    """Plan and run a study in this process; the outcome and the launcher."""
    launcher = launcher or InProcess()
    plan = make_plan(study, "pocket", Path(folder), **options)
    stop = stop or Stop()
    runner = Runner(plan, launcher, StudyReporter(console), stop, keep=keep)
    return runner.run(), launcher


def run_quietly(study_options, folder, options):
    """For `Process(function=...)`."""
    outcome, launcher = run_here(tiny_study(**study_options), folder, **options)
    Path(folder, f"started-{len(launcher.order)}-{os.getpid()}").touch()
    return len(outcome.failed)


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
