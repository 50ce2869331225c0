"""``spatialgrad tune``: the best k for a network and images of one's own."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro

from spatialgrad.cli.launching import LaunchOptions
from spatialgrad.cli.options import ConfigCommand, ConfigFile, RecipeName, command_of, flags_of
from spatialgrad.cli.terminal import Rows, terminal
from spatialgrad.studies.compare import LEAST_SEEDS, default_folder
from spatialgrad.studies.plan import make_plan
from spatialgrad.studies.record import STUDY, best_file, read_study
from spatialgrad.studies.tune import (
    FIELD,
    FIRST_SEED,
    SEARCH,
    TUNE,
    TUNE_LOCK,
    TrialJobs,
    check_bounds,
    check_config,
    finalists,
    ks_of,
    tune_study,
)
from spatialgrad.train.config import TrainConfig, with_values
from spatialgrad.train.errors import ConfigError, DivergedError
from spatialgrad.train.flags import require
from spatialgrad.train.jsonfiles import write_json
from spatialgrad.train.locks import locked

HELD_OUT = 0.1
"""Share of the training images that is held out by default."""
LEAST_TRIALS = 2
Bounds = Annotated[tuple[float, float], tyro.conf.arg(metavar="LOW HIGH")]


def tune(
    config: TrainConfig,
    base: TrainConfig,
    k: Bounds = (1.0, 20.0),
    trials: int = 20,
    seeds: int = 3,
    method: Literal["sgs", "sgs-autocorrelation"] = "sgs",
    prune: bool = True,
    out: Path | None = None,
    launch: Annotated[LaunchOptions, tyro.conf.arg(name="")] = LaunchOptions(),  # noqa: B008 (frozen)
    config_file: ConfigFile = None,
    recipe: RecipeName = None,
) -> None:
    """Tune k on held-out training images and report the uncertainty. Run the same command again to resume it.

    Args:
        config: Of every run.
        base: The values of the recipe, with images held out.
        k: Smallest and largest k; the values between are sampled on a logarithmic scale.
        trials: Number of values to try, --scaling.k first. A larger number extends an existing search.
        seeds: Number of further runs for --scaling.k and for each of the best values, to compare them.
        method: Where scalings come from: mutual information or autocorrelation.
        prune: Stop trials early that fall behind the others.
        out: Folder of the search; by default studies/tune-DATASET-MODEL, with a digest of what else differs from the
            defaults.
        launch: Where the runs are trained.
        config_file: Settings.
        recipe: Its name.
    """
    check_bounds(k)
    require(trials >= LEAST_TRIALS, "trials", trials, f"must be at least {LEAST_TRIALS}")
    require(seeds >= LEAST_SEEDS, "seeds", seeds, f"must be at least {LEAST_SEEDS}")
    config = launch.placed(with_values(config, {"method.name": method}))
    check_config(config)
    launch.check_data(config)
    flags = [*flags_of(config, base, without=("method.name",)), "--method", method, "--k", *(f"{end:g}" for end in k)]
    command = command_of(TUNE, [*flags, "--trials", str(trials), "--seeds", str(seeds)], recipe)
    folder = default_folder(TUNE, config) if out is None else out
    values = search(folder, config, k, trials, launch, prune=prune, command=command)
    # Values that were trained again before the search was extended stay.
    again = {*finalists(values, config.scaling.k), *ks_of(read_study(folder))}
    plan = make_plan(
        tune_study(config, sorted(again)), "own", folder, num_seeds=seeds, command=command, first_seed=FIRST_SEED
    )
    launch.run(plan, config.machine)
    best = show_answer(folder, config)
    # As it is trained afterwards: on all training images.
    trained, default = with_values(config, {"data.validation": 0}), with_values(base, {"data.validation": 0})
    flags = [*flags_of(trained, default, without=(FIELD,)), "--scaling.k", f"{best:g}"]
    print(f"Train with it: {command_of('train', flags, recipe)}")


def holding_out(config: TrainConfig, arguments: Sequence[str]) -> TrainConfig:
    """Defaults with held-out images to judge trials by."""
    return with_values(config, {"data.validation": config.data.validation or HELD_OUT})


tune_command = ConfigCommand(tune, hidden=("method", "seed", "out"), defaults=holding_out)


def search(
    folder: Path,
    config: TrainConfig,
    bounds: tuple[float, float],
    num_trials: int,
    launch: LaunchOptions,
    *,
    prune: bool,
    command: str,
) -> dict[float, float]:
    """Search k between two bounds, see `TrialJobs`; returns the metric of each value that was trained to the end."""
    from spatialgrad.studies.console import StudyReporter, counted
    from spatialgrad.studies.runner import run_jobs
    from spatialgrad.train.dry_run import check_training
    from spatialgrad.train.signals import Stop

    if launch.launcher == "local" and not (folder / STUDY).exists():
        check_training(config, processes=launch.processes)  # all trials would fail alike
    reporter, stop = StudyReporter(), Stop()
    with stop.listening(), locked(folder, TUNE_LOCK):
        jobs = TrialJobs(folder, config, bounds, num_trials, reporter, prune=prune, command=command)
        reporter.message(f"{tune_study(config, ()).title_at('own')}\n  in {folder}")
        reporter.start(num_trials, len(jobs.trials), "trial")
        run_jobs(jobs, launch.open(config.machine), reporter, stop, processes=launch.processes)
    values = {trial.k: trial.value for trial in jobs.trials if trial.value is not None}
    if not values:
        raise DivergedError(f"every trial in {folder} diverged; try a lower --optimizer.lr")
    stopped = sum(trial.state == "pruned" for trial in jobs.trials)
    reporter.message(f"{counted(len(jobs.trials), 'trial')} finished, {stopped} of them stopped early.")
    return values


def show_answer(folder: Path, config: TrainConfig) -> float:
    """Write the report of a search, print its answer, and return the k to use."""
    # Matplotlib takes a second to import.
    from spatialgrad.report.load import load_results
    from spatialgrad.report.page import write_report
    from spatialgrad.report.tables.cells import metric_name, spread
    from spatialgrad.report.tuning import described, explain_verdict, judge

    study = load_results(folder)
    ks = dict(zip(ks_of(study.record), study.arms, strict=True))
    verdict = judge({k: arm.values for k, arm in ks.items()}, config.scaling.k)
    if verdict is None:
        raise ConfigError(
            f"{folder} has no results to compare; see spatialgrad study status {shlex.quote(str(folder))}"
        )
    path = best_file(folder, SEARCH)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"values": {FIELD: verdict.best.k}, "value": verdict.best.summary.mean / 100})
    page = write_report([folder])
    metric = metric_name(study.record.metric)
    cells = [
        [
            f"{each.k:g}",
            spread(each.summary),
            "reference" if each.over_reference is None else described(each.over_reference),
            "best" if each.below_best is None else described(each.below_best),
        ]
        for each in verdict.candidates
    ]
    console = terminal()
    console.print()
    columns = ("k", f"held-out {metric} (%)", f"difference from k = {verdict.reference:g}", "difference from the best")
    console.print(Rows(columns, cells))
    console.print(f"\n{explain_verdict(verdict, metric)}\n", soft_wrap=True, markup=False)
    console.print(f"Report: {page}", soft_wrap=True, markup=False)
    return verdict.recommended
