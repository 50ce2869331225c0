"""``spatialgrad compare``: compare methods on your own model and data."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from spatialgrad.cli.launching import LaunchOptions
from spatialgrad.cli.options import ConfigCommand, ConfigFile, RecipeName, command_of, flags_of, value_of
from spatialgrad.cli.report import show_report
from spatialgrad.cli.terminal import terminal
from spatialgrad.data.registry import DATASETS, FOLDER, is_folder
from spatialgrad.studies.compare import (
    COMPARABLE,
    COMPARE,
    LEAST_SEEDS,
    compare_study,
    default_folder,
    described,
    methods_in,
)
from spatialgrad.studies.plan import make_plan
from spatialgrad.studies.record import STUDY, read_study
from spatialgrad.studies.registry import FailedRunsError
from spatialgrad.train.config import TrainConfig, with_values
from spatialgrad.train.console import duration
from spatialgrad.train.errors import ConfigError

if TYPE_CHECKING:
    from spatialgrad.report.results import ArmResults, StudyResults
    from spatialgrad.report.statistics import Comparison

MINUTES = 30.0
"""Time of a comparison for which neither epochs nor minutes are given."""
SEEDS, MANY_SEEDS = 3, 5
"""Seeds of a planned comparison: fewer show no difference, and more are worth their time in long trainings only."""
FEWEST_EPOCHS, MANY_EPOCHS, MOST_EPOCHS = 3, 25, 100
"""Of a planned comparison: fewer teach nothing; from the second number on, more seeds come first; and the most."""
RUN_SECONDS = 10.0
"""What a run takes beside its epochs: to start, to read the images, to write its result."""
SMALL_MODEL = {"model.name": "vgg11-linear", "model.width": 0.25}
SMALL_IMAGES = {"data.image_size": 64, "data.batch_size": 64, "data.cutout": 0, "optimizer.lr": 0.05}
SHIPPED = {"data.name": "fashion-mnist-mini", "data.image_size": 32, "data.cutout": 0, "optimizer.lr": 0.05}
CLEAR_GAP = 5.0
"""Points by which plain training is better on training images where scaling has helped; see docs/results.md."""
NAMED = ("model.name", "model.width", "data.name", "data.image_size", "data.batch_size", "data.cutout", "optimizer.lr")
"""Fields whose defaults depend on the command line, and that a repeated command therefore names."""

Images = Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[FOLDER]")]
Methods = Annotated[tuple[str, ...], tyro.conf.arg(metavar=f"{{{','.join(COMPARABLE)}}} ...")]


def compare(
    config: TrainConfig,
    base: TrainConfig,
    images: Images = None,
    minutes: float | None = None,
    methods: Methods = ("baseline", "sgs"),
    seeds: int | None = None,
    epochs: int | None = None,
    out: Path | None = None,
    launch: Annotated[LaunchOptions, tyro.conf.arg(name="")] = LaunchOptions(),  # noqa: B008 (frozen)
    note: str = "",
    archive: Path | None = None,
    config_file: ConfigFile = None,
    recipe: RecipeName = None,
) -> None:
    """Compare methods on your own images and network. Run the same command again to resume it.

    Args:
        config: Of every run.
        base: The values of the recipe.
        images: Folder of images, with one folder per class, or with such in train/ and val/. The same as --dataset
            folder:FOLDER; the images that are shipped with the package by default.
        minutes: Time to plan for: epochs and seeds follow from a few measured steps. 30 by default, unless --epochs,
            --recipe or --config is given.
        methods: Methods to compare. The reference is baseline, or the first if it is not among them.
        seeds: Number of runs per method, with seeds 0, 1, ...; differences are paired by seed. 3 by default.
        epochs: Number of training epochs; by default planned, or those of the recipe.
        out: Folder of the comparison; by default in studies/, named after what differs from the defaults. More methods
            and seeds extend it.
        launch: Where the runs are trained.
        note: A remark to show in the report.
        archive: Archive each run in this folder as soon as it finishes, as `spatialgrad study archive` does. Runs
            that are archived there are not trained again.
        config_file: Settings.
        recipe: Its name.
    """
    if seeds is not None and seeds < LEAST_SEEDS:
        raise ConfigError(f"--seeds must be at least {LEAST_SEEDS}, got {seeds}: differences are paired by seed")
    if minutes is not None and (epochs is not None or not minutes > 0):
        reason = "plans the number of epochs, and --epochs sets it" if epochs is not None else "must be positive"
        raise ConfigError(f"--minutes {minutes:g}: {reason}")
    if images is not None and dataset_name(images) != config.data.name:
        raise ConfigError(f"{images} must come first, and without --dataset: spatialgrad compare {images} --minutes 30")
    config = launch.placed(config)
    if epochs is not None:
        config = with_values(config, {"budget.epochs": epochs})
    folder = default_folder(COMPARE, config) if out is None else out
    if out is None and minutes is not None:
        folder = folder.with_name(f"{folder.name}-{minutes:g}-minutes")
    before = read_study(folder) if (folder / STUDY).exists() else None
    # A comparison that is there keeps its methods: all of them get the seeds that are asked for.
    every = list(dict.fromkeys([*(methods_in(before) if before else ()), *methods]))
    compare_study(config, every)  # refuses what cannot be compared before anything is measured
    launch.check_data(config)
    if epochs is None and before is not None and (shown := [arm for arm in before.arms if arm.shown]):
        config = with_values(config, {"budget.epochs": shown[0].config.budget.epochs})  # as it was planned
    elif epochs is None and (minutes is not None or (recipe is None and config_file is None)):
        planned = plan(config, every, minutes or MINUTES, seeds, launch.slots(config.machine))
        config, seeds = with_values(config, {"budget.epochs": planned.epochs}), planned.seeds
    num_seeds = max(seeds or SEEDS, len(before.seeds) if before else 0)
    flags = flags_of(config, base, without=("method.name", "budget.epochs"), always=NAMED)
    flags += ["--epochs", str(config.budget.epochs), "--methods", *every, "--seeds", str(num_seeds)]
    if default_folder(COMPARE, config) != folder:
        flags += ["--out", str(folder)]
    command = command_of(COMPARE, flags, recipe)
    try:
        launch.run(
            make_plan(compare_study(config, every), "own", folder, num_seeds=num_seeds, note=note, command=command),
            config.machine,
            archive=archive,
        )
    except FailedRunsError:
        show_report(folder)
        raise
    show_report(folder)
    show_verdict(folder)


def small_defaults(config: TrainConfig, arguments: Sequence[str]) -> TrainConfig:
    """Defaults that fit into half an hour without a GPU: a small network on small images.

    Args:
        config: Of the recipe; it is left as it is if there is one.
        arguments: The command line.
    """
    images = arguments[0] if arguments and not arguments[0].startswith("-") else None
    values: dict[str, object] = {} if images is None else {"data.name": dataset_name(images)}
    if value_of("--recipe", arguments) is None and value_of("--config", arguments) is None:
        dataset = values.get("data.name") or value_of("--dataset", arguments)
        if value_of("--model", arguments) is None:
            values |= SMALL_MODEL
        if dataset is None:
            values |= SHIPPED
        elif is_folder(str(dataset)):
            values |= SMALL_IMAGES
    return with_values(config, values)


def dataset_name(images: str) -> str:
    """The data set that a command line names: one of the package's, or a folder."""
    return images if images in DATASETS or ":" in images else f"{FOLDER}{images}"


compare_command = ConfigCommand(compare, hidden=("method", "seed", "out", "budget.epochs"), defaults=small_defaults)


@dataclass(frozen=True)
class Planned:
    """A comparison that fits into the time."""

    epochs: int
    seeds: int
    seconds: float


def plan(config: TrainConfig, methods: Sequence[str], minutes: float, seeds: int | None, slots: int) -> Planned:
    """Plan epochs and seeds from a few measured steps, and say so.

    Args:
        config: Of every run.
        methods: To compare.
        minutes: Time for all runs.
        seeds: Number of seeds, if it is given.
        slots: Number of runs at a time.
    """
    from spatialgrad.train.dry_run import estimate_epoch

    console = terminal()
    console.print(f"{described(config)}: measuring a few steps of {', '.join(methods)} ...")
    study = compare_study(config, methods)
    measured = {arm.label: arm.config for arm in study.arms("own") if arm.backbone is None}
    # repopt trains a plain network after its search.
    epoch = {label: estimate_epoch(each) for label, each in measured.items()}
    planned = fit(sum(epoch.values()), len(methods), minutes, seeds, slots)
    each = ", ".join(f"{label} {seconds:.1f} s" for label, seconds in epoch.items())
    console.print(f"An epoch takes: {each}.", soft_wrap=True)
    if planned is None:
        needed = ((seeds or SEEDS) * (FEWEST_EPOCHS * sum(epoch.values()) + len(methods) * RUN_SECONDS)) / slots
        raise ConfigError(
            f"--minutes {minutes:g} is too short: {FEWEST_EPOCHS} epochs with {seeds or SEEDS} seeds take about "
            f"{duration(needed)}. Use --minutes {-(-needed // 60):.0f}, fewer images (--data.limit), smaller ones "
            "(--data.image-size) or a narrower network (--model.width)"
        )
    runs = planned.seeds * len(methods)
    console.print(
        f"In {minutes:g} minutes: {planned.epochs} epochs, {planned.seeds} seeds, {runs} runs, about "
        f"{duration(planned.seconds)}.\n"
        f"This cannot tell how the methods compare after many more epochs or with another network, and {planned.seeds} "
        "seeds miss small differences. More --minutes tell more.",
        soft_wrap=True,
    )
    return planned


def fit(epoch: float, num_methods: int, minutes: float, seeds: int | None, slots: int) -> Planned | None:
    """The largest comparison that fits into the time; None if none does.

    Args:
        epoch: Seconds of an epoch of all methods.
        num_methods: Number of methods.
        minutes: Time for all runs.
        seeds: Number of seeds, if it is given.
        slots: Number of runs at a time.
    """
    for number, least in ((seeds, FEWEST_EPOCHS),) if seeds else ((MANY_SEEDS, MANY_EPOCHS), (SEEDS, FEWEST_EPOCHS)):
        start = number * num_methods * RUN_SECONDS / slots
        each = number * epoch / slots
        epochs = min(int((60 * minutes - start) / each), MOST_EPOCHS)
        if epochs >= least:
            return Planned(epochs, number, start + epochs * each)
    return None


def show_verdict(folder: Path) -> None:
    """Print how each method compares with the reference, and how well the reference fits its own training images."""
    from spatialgrad.report.load import load_results
    from spatialgrad.report.tables.cells import metric_name
    from spatialgrad.report.tables.results import compare_all

    study = load_results(folder)
    compared, metric, lines = compare_all(study), metric_name(study.record.metric), list[str]()
    reference = next((arm for arm in study.shown if study.reference(arm) is None), None)
    for arm in study.shown:
        if (comparison := compared[arm.record.key]) is not None and reference is not None:
            lines.append(verdict(arm.label, reference.label, comparison))
    for arm in study.shown:
        train, test = (_last(study, arm, split) for split in ("train", "test"))
        if train is not None and test is not None:
            lines.append(f"{arm.label}: {metric} {train:.2f} % on training images, {test:.2f} % on validation images.")
            if arm is reference:
                lines.append(fit_verdict(arm.label, train, test))
    terminal().print("\n".join(lines), soft_wrap=True, markup=False)


def verdict(method: str, reference: str, comparison: Comparison) -> str:
    """A comparison in a sentence."""
    from spatialgrad.report.tables.cells import signed

    difference = f"{method}: {signed(comparison.difference)} points from {reference}"
    if comparison.low is None or comparison.high is None:
        return f"{difference} ({comparison.note})."
    says = "better" if comparison.better else "worse" if comparison.worse else "no clear difference"
    interval = f"{signed(comparison.low)} to {signed(comparison.high)}"
    return f"{difference}, 95 % interval {interval} ({comparison.n} seeds): {says}."


def fit_verdict(label: str, train: float, test: float) -> str:
    """Whether a training is long enough to judge scaling by it, from its metric in per cent."""
    if train - test >= CLEAR_GAP:
        return (
            f"{label} is clearly better on training images than on validation images. Every clear gain of scaling so "
            "far was found in such a training, but not every such training gained."
        )
    return (
        f"{label} is hardly better on training images than on validation images. No clear gain of scaling has been "
        "found in such a training so far: compare again with more --minutes or --epochs before you decide."
    )


def _last(study: StudyResults, arm: ArmResults, split: str) -> float | None:
    """Mean over the finished runs of the study's metric after the last epoch."""
    curves = [run.curves[f"{split}_{study.record.metric}"][1] for run in arm.runs if run.value is not None]
    return statistics.fmean(curve[-1] for curve in curves) if curves and all(map(len, curves)) else None
