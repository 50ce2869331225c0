"""``spatialgrad compare``: compare methods on your own model and data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import tyro

from spatialgrad.cli.importing import importing
from spatialgrad.cli.launching import LaunchOptions
from spatialgrad.cli.outcome import show_report
from spatialgrad.cli.train import RecipeName
from spatialgrad.cli.training import TrainingOptions, command_of, flags_of
from spatialgrad.studies.own.compare import COMPARE, LEAST_SEEDS, METHODS, compare_study, default_folder, methods_in
from spatialgrad.studies.plan import make_plan
from spatialgrad.studies.record import STUDY, read_study
from spatialgrad.studies.registry import FailedRunsError
from spatialgrad.train.config import TrainConfig
from spatialgrad.train.errors import ConfigError

Methods = Annotated[tuple[str, ...], tyro.conf.arg(metavar=f"{{{','.join(METHODS)}}} ...")]


def compare_command(default: TrainConfig) -> Callable[..., None]:
    """The subcommand `compare`.

    Args:
        default: The config whose fields the flags change.
    """

    def compare(
        training: Annotated[TrainingOptions, tyro.conf.arg(name="")] = TrainingOptions.of(default),  # noqa: B008
        methods: Methods = ("baseline", "sgs"),
        seeds: int = 3,
        out: Path | None = None,
        launch: Annotated[LaunchOptions, tyro.conf.arg(name="")] = LaunchOptions(),  # noqa: B008 (frozen)
        note: str = "",
        archive: Path | None = None,
        recipe: RecipeName = None,
    ) -> None:
        """Compare methods on your own network and images. Run the same command again to resume it.

        Args:
            training: Of every run.
            methods: Methods to compare. The reference is baseline, or the first if it is not among them.
            seeds: Number of runs per method, with seeds 0, 1, ...; differences are paired by seed.
            out: Folder of the comparison; by default studies/compare-DATASET-MODEL, with a digest of what else differs
                from the defaults. More methods and seeds extend it.
            launch: Where the runs are trained.
            note: A remark to show in the report.
            archive: Archive each run in this folder as soon as it finishes, as `spatialgrad study archive` does. Runs
                that are archived there are not trained again.
            recipe: Use its values as defaults.
        """
        if seeds < LEAST_SEEDS:
            raise ConfigError(f"--seeds must be at least {LEAST_SEEDS}, got {seeds}: differences are paired by seed")
        config = training.config(default.method.name)
        config = replace(config, machine=launch.within(config.machine))
        folder = default_folder(COMPARE, config) if out is None else out
        before = read_study(folder) if (folder / STUDY).exists() else None
        # A comparison that is there keeps its methods: all of them get the seeds that are asked for.
        every = list(dict.fromkeys([*(methods_in(before) if before else ()), *methods]))
        with importing():  # the data set's module
            study = compare_study(config, every)
        launch.check_data(config)
        num_seeds = max(seeds, len(before.seeds)) if before else seeds
        flags = flags_of(config, default, without=("method.name",))
        repeated = command_of(COMPARE, [*flags, "--methods", *every, "--seeds", str(num_seeds)], recipe)
        plan = make_plan(study, "own", folder, num_seeds=seeds, note=note, command=repeated)
        try:
            launch.run(plan, config.machine, archive=archive)
        except FailedRunsError:
            show_report(folder)
            raise
        show_report(folder)

    return compare
